"""One decoding step of the sampling loop: draws, and the state that goes from token to token."""

import numpy as np
import torch


class State:
    """Decoding state of a batch: key-value cache, attention mask (R, t) and next position (R,)."""

    def __init__(self, cache, mask, positions):
        self.cache, self.mask, self.positions = cache, mask, positions

    def keep(self, rows):
        """Leaves these rows, in this order, repeats allowed."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]


def draw_tokens(logits, uniforms, sampling):
    """One token a row by inverse CDF: tokens (R,), their log-probabilities (R,), entropies (R,)."""
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).nan_to_num().sum(-1)
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
    else:
        cumulative = restrict(probabilities, sampling).double().cumsum(-1)
        threshold = uniforms * cumulative[:, -1]
        tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0].clamp(
            max=logits.shape[-1] - 1
        )
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0], entropy


def restrict(probabilities, sampling):
    """Zeroes what top_k and top_p exclude, (R, V); the most likely token always stays."""
    if sampling.top_k and sampling.top_k < probabilities.shape[-1]:
        floor = probabilities.topk(sampling.top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.where(probabilities >= floor, 0.0)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.where(before < sampling.top_p * ordered.sum(-1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
    return probabilities


def no_samples():
    """What sampling returns for no rows: tokens, log-probabilities, lengths, entropies, truncated."""
    empty = np.empty((0, 1), dtype=np.int32)
    return empty, empty.astype(np.float32), np.empty(0, np.int64), np.empty(0), np.empty(0, bool)
