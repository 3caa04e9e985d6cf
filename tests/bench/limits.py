"""What no way of computing can go below: the same matrix products, and the same bytes read.

`generation` and `update` do nothing but the products of a model's linear layers, at the numbers of
rows that a round of rollouts has, and read as many bytes as sampling reads of the cache of keys and
values, in a block of memory of the cache's size. Where the policy shares prefixes, what responses
begin with alike is counted once here too. They are timed in turns with the work itself, so
that "x of the limit" is a ratio on one machine. Left out is everything else that has to be done:
norms, rotations, softmax, the attention of an update, and drawing the tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch

import workbench as wb

# The two sizes of the sharp lab.
SIZES = {"0.10 M": {"base": "early"}, "0.34 M": {"base": "clean"}}


def lab(size, **options):
    """The embedded lab with the model of a size."""
    return wb.labs.tiny(held_out=0, **SIZES[size], **options)


@dataclass(frozen=True)
class Work:
    """What has to be computed for some rollouts; `steps` are those of the function below."""

    problems: int
    prompt_tokens: int
    steps: list[tuple[int, int]]


class Limits:
    """The least work of a policy's model.

    Parameters
    ----------
    policy : TransformersPolicy
    micro_tokens : int
        Tokens of a micro-batch of an update.
    """

    def __init__(self, policy, micro_tokens=8192):
        config = policy.model.config
        self.layers = [
            module.weight.detach()
            for module in policy.decoder.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        self.head = policy.head.weight.detach()
        self.share_prefixes = policy.share_prefixes
        self.micro_tokens = micro_tokens
        # Float32 numbers that the cache holds of a token: a key and a value for each head of keys.
        self.numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        widths = {size for weight in [*self.layers, self.head] for size in weight.shape}
        self.inputs = {width: torch.randn(micro_tokens, width) for width in widths}
        self.memory = torch.zeros(0)

    def work(self, rollouts):
        """What has to be computed for some rollouts, for the two methods that follow."""
        return Work(
            problems=len(np.unique(rollouts.problem)),
            prompt_tokens=prompt_tokens(rollouts),
            steps=steps(rollouts, self.share_prefixes),
        )

    @torch.inference_mode()
    def generation(self, work):
        """Sampling, each prompt computed once and ended rows gone at once."""
        self._forward(work.prompt_tokens, work.problems)
        for rows, places in work.steps:
            self._forward(rows, rows)
            self._read(places * self.numbers)

    @torch.inference_mode()
    def update(self, work):
        """One step on packed rows, by a forward and a backward pass."""
        responses = sum(rows for rows, _ in work.steps)
        # What predicts a token is the last one of a prompt or a computed one of a response.
        layers = self.layers, work.prompt_tokens + responses
        head = [self.head], work.problems + responses
        for weights, total in (layers, head):
            for start in range(0, total, self.micro_tokens):
                size = min(self.micro_tokens, total - start)
                for weight in weights:
                    self._forward_and_backward(weight, size)

    def _forward(self, tokens, logits):
        for weight in self.layers:
            torch.nn.functional.linear(self.inputs[weight.shape[1]][:tokens], weight)
        torch.nn.functional.linear(self.inputs[self.head.shape[1]][:logits], self.head)

    def _forward_and_backward(self, weight, size):
        inputs = self.inputs[weight.shape[1]][:size]
        gradient = self.inputs[weight.shape[0]][:size]
        torch.nn.functional.linear(inputs, weight)
        torch.mm(gradient, weight)
        torch.mm(gradient.t(), inputs)

    def _read(self, numbers):
        """Read so many numbers; the product of two halves costs nothing beside the reading."""
        if len(self.memory) < numbers:
            self.memory = torch.zeros(numbers)
        half = numbers // 2
        torch.dot(self.memory[:half], self.memory[half : 2 * half])


def prompt_tokens(rollouts):
    """Tokens of the prompt of each problem, once."""
    _, first = np.unique(rollouts.problem, return_index=True)
    return int(rollouts.prompt.lengths[first].sum())


def steps(rollouts, share_prefixes):
    """Of each place in the responses, how many rows are computed there and what they look at.

    The second number is that of the tokens that all these rows see: their prompt, what is before
    them in their response, and themselves. The last token of a response is not computed, since
    nothing follows it. With `share_prefixes`, responses to a problem that are alike so far are one
    row.
    """
    width = int(rollouts.lengths.max()) - 1
    places = np.arange(width)
    going = rollouts.lengths[:, None] > places + 1
    seen = rollouts.prompt.lengths[:, None] + places + 1
    if share_prefixes:
        tokens = rollouts.response.padded()
        _, text = np.unique(rollouts.problem, return_inverse=True)
        for place in places:
            # Different texts stay different, and equal ones stay equal if their next token is.
            text = np.unique(np.stack([text, tokens[:, place]]), axis=1, return_inverse=True)[1]
            rows = np.flatnonzero(going[:, place])
            _, first = np.unique(text[rows], return_index=True)
            going[:, place] = np.isin(np.arange(len(rollouts)), rows[first])
    return list(zip(going.sum(0).tolist(), (going * seen).sum(0).tolist()))
