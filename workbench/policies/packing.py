"""Training without padding: all rows end to end, and what they have in common computed once.

A model of transformers computes everything but the attention token by token, so it can be given all
tokens of a micro-batch as a single row. Only the attention has to know which tokens belong
together. `attention` is registered with transformers as an attention function of its own: with a
`Packing` it gathers the tokens of each prompt, and of each response with its prompt in front.
Without one it is the usual `sdpa` function.

A prompt is computed once for all its responses, since causal attention never lets it see them. The
same holds for the tokens that several responses to a prompt begin with: where prefixes are shared,
prompt and responses are a tree, and each of its tokens is computed once. The last token of a
response predicts nothing and is left out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from workbench.policies.checks import has_windows
from workbench.rollouts import Ragged, Rollouts

NAME = "workbench_packed"  # of the attention function, as transformers knows it
# Models whose layers hand on further arguments to the attention function, tried in the tests.
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
SHORTEST = 0.5  # responses shorter than this share of the longest are padded apart from it
# Queries of a row up to which a mask says what they may attend to. It takes at most so many numbers
# for each key. Longer rows are whole texts, for which kernels of torch need no mask.
SHORT = 128
SMALL = 2**14  # queries times keys of a row up to which plain products are the fastest on a CPU


@dataclass(frozen=True)
class Rows:
    """Rows of tokens that attend to one another, padded to one length.

    Attributes
    ----------
    queries : (R, T) int64
        Places of the tokens among the N packed ones; padding repeats place 0.
    keys : (R, S) int64
        Places of what they may attend to.
    bias : (R, 1, T, S) float32, optional
        0 where a token attends to another, -inf where it does not. None where queries and keys are
        the same, and each token attends to those before it.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class Packing:
    """N tokens end to end: first each distinct prompt, then what is computed for each response.

    Attributes
    ----------
    ids : (N,) int64
    positions : (N,) int64
        Of each token in its own text, from 0.
    rows : list of Rows
        The prompts, then the responses, those of like length together.
    outputs : (N,) int64
        Where each token stands among the queries of all rows, end to end.
    predictors : (K,) int64
        The packed tokens that predict a response token, each once.
    predicts : (M,) int64
        For each response token of all rows, end to end, which of the predictors predicts it.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    rows: list[Rows]
    outputs: torch.Tensor
    predictors: torch.Tensor
    predicts: torch.Tensor


def supports(model: Any) -> bool:
    """Whether a model of transformers has the structure that `attention` computes.

    Another attention function than transformers' `sdpa`, an unknown architecture and a window that
    slides over the context are left as they are.
    """
    config = model.config
    if config.model_type not in FAMILIES or has_windows(config):
        return False
    return config._attn_implementation in ("sdpa", NAME)


def pack(rollouts: Rollouts, device: Any, share_prefixes: bool = False) -> Packing:
    """The packing of some rollouts with a prompt each, for a model on `device`.

    With `share_prefixes`, the tokens that several responses to a prompt begin with are computed
    once for all of them, as the prompt itself always is.
    """
    # Prompts are compared by their tokens and not by their problem, so two problems with one text
    # share its computation too.
    prompts, prompt_of_row = rollouts.prompt.distinct()
    tokens = without_last(rollouts.response).padded(fill=-1)
    start = len(prompts.values)  # of the responses among all tokens
    # The order in which rows are packed, which of its tokens each row computes itself, and where
    # all of them stand.
    if share_prefixes:
        order, own = _without_beginnings(tokens, prompt_of_row)
    else:
        order = np.arange(len(tokens))
        own = tokens >= 0
    paths = _paths(tokens, order, own, start)

    ids = np.empty(start + np.count_nonzero(own), dtype=np.int64)
    positions = np.empty_like(ids)
    ids[:start] = prompts.values
    positions[:start] = prompts.places()
    # A response goes on with the positions where its prompt ends, as in a row of its own.
    widths = prompts.lengths[prompt_of_row]
    ids[paths[own]] = tokens[own]
    positions[paths[own]] = (widths[:, None] + np.arange(tokens.shape[1]))[own]

    # The inverse of gathering: every packed token is a query exactly once, and this finds it among
    # the padded queries of all sets.
    sets = _queries_and_keys(prompts, prompt_of_row, paths, own)
    places = np.concatenate([queries.ravel() for queries, _ in sets])
    outputs = np.empty(len(positions), dtype=np.int64)
    outputs[places[places >= 0]] = np.flatnonzero(places >= 0)

    # The prompt's last token predicts the first one of a response, and each token the next.
    last_of_prompt = prompts.offsets[1:][prompt_of_row] - 1
    is_token = rollouts.response.mask()
    before = np.concatenate([last_of_prompt[:, None], paths], axis=1)[:, : is_token.shape[1]]
    predictors, predicts = np.unique(before[is_token], return_inverse=True)
    return Packing(
        ids=torch.as_tensor(ids, device=device),
        positions=torch.as_tensor(positions, device=device),
        rows=[_rows_of(queries, keys, positions, device) for queries, keys in sets],
        outputs=torch.as_tensor(outputs, device=device),
        predictors=torch.as_tensor(predictors, device=device),
        predicts=torch.as_tensor(predicts, device=device),
    )


def _queries_and_keys(
    prompts: Ragged, prompt_of_row: np.ndarray, paths: np.ndarray, own: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sets of rows: the places of queries (R, T), and of the keys (R, S) that they may look at.

    -1 stands for padding. All prompts are one set. Responses come in sets of like length, since the
    attention of a set is padded to its longest row. A response looks at its prompt and at itself.
    Where its tokens stand is in `paths`, and which of them it computes itself in `own`.
    """
    prompt_places = Ragged(np.arange(len(prompts.values)), prompts.offsets).padded(fill=-1)
    own_places = Ragged.of_lengths(paths[own], own.sum(1)).padded(fill=-1)
    # The row that computes a token, -1 for those of prompts.
    owner = np.full(len(prompts.values) + np.count_nonzero(own), -1)
    owner[paths[own]] = np.nonzero(own)[0]
    sets = [(prompt_places, prompt_places)]
    for part in _of_like_length(own.sum(1)):
        seen = [_trimmed(prompt_places[prompt_of_row[part]]), _trimmed(paths[part])]
        queries, keys = _trimmed(own_places[part]), np.concatenate(seen, axis=1)
        if queries.shape[1] > SHORT:
            # The whole text of each row, with padding at its end alone. What the row does not
            # compute itself is computed once more, and dropped.
            padding_last = np.argsort(keys < 0, axis=1, kind="stable")
            keys = _trimmed(np.take_along_axis(keys, padding_last, axis=1))
            queries = np.where(owner[keys] == part[:, None], keys, -1)
        sets.append((queries, keys))
    return sets


def _rows_of(queries: np.ndarray, keys: np.ndarray, positions: np.ndarray, device: Any) -> Rows:
    """A set of `_queries_and_keys` as tensors; positions (N,) are those of all packed tokens."""
    # Padding reads token 0. No token attends to it as a key, and as a query it is never read.
    read_keys = torch.as_tensor(keys.clip(min=0), device=device)
    if queries.shape[1] > SHORT:
        return Rows(read_keys, read_keys, None)
    # Keys are of the same text as the query, so an earlier position is all that is asked for.
    allowed = positions[keys][:, None, :] <= positions[queries][:, :, None]
    allowed &= (keys >= 0)[:, None, :]
    bias = torch.zeros(allowed.shape, device=device)
    bias.masked_fill_(torch.as_tensor(~allowed, device=device), -torch.inf)
    read_queries = torch.as_tensor(queries.clip(min=0), device=device)
    return Rows(read_queries, read_keys, bias[:, None])


# The attention function


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packing: Packing | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of packed tokens: query (1, heads, N, head), result (1, N, heads, head).

    The signature is that of transformers' attention functions.
    """
    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    dropout = options.get("dropout") or 0.0
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    mixed = []
    for rows in packing.rows:
        places = (rows.queries, rows.keys, rows.keys)
        queries, keys, values = map(_gathered, (query, key, value), places)
        bias = None if rows.bias is None else rows.bias.to(query.dtype)
        size = rows.queries.shape[1] * rows.keys.shape[1]
        if bias is not None and query.device.type == "cpu" and size <= SMALL and not dropout:
            result = _plain_attention(queries, keys, values, bias, scaling)
        else:
            # Without a mask each token attends to those before it.
            result, _ = sdpa_attention_forward(
                module, queries, keys, values, bias, dropout=dropout, scaling=scaling
            )
        mixed.append(result.flatten(0, 1).flatten(1))
    # Back to the order of the packed tokens, without the padding.
    together = embedding(packing.outputs, torch.cat(mixed))
    return together.view(1, len(packing.ids), query.shape[1], -1), None


def _plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """(R, T, heads, head) from queries (R, heads, T, head).

    Keys and values may have fewer heads.
    """
    rows, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    # The queries that share a key are put one below the other.
    query = query.reshape(rows, kv_heads, -1, size) * scaling
    scores = (query @ key.mT).view(rows, kv_heads, heads // kv_heads, tokens, -1) + bias[:, :, None]
    mixed = scores.softmax(-1).view(rows, kv_heads, -1, key.shape[2]) @ value
    return mixed.view(rows, heads, tokens, size).transpose(1, 2)


def _gathered(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """(R, heads, T, head) of packed states (1, heads, N, head) at places (R, T)."""
    _, heads, size, head = states.shape
    flat = states.transpose(1, 2).reshape(size, heads * head)
    # `embedding` is an index whose gradient is summed row by row, which is fast on a CPU too.
    return embedding(places, flat).view(*places.shape, heads, head).transpose(1, 2)


# Places of tokens


def without_last(responses: Ragged) -> Ragged:
    """All tokens but the last of each row."""
    return responses.first(np.maximum(responses.lengths - 1, 0))


def _without_beginnings(
    tokens: np.ndarray, prompt_of_row: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """An order of the rows (R,), and which tokens of each row no row before it in that order has.

    tokens (R, T) of responses, -1 for padding; the second result is (R, T) bool, False for padding.

    >>> order, own = _without_beginnings(np.array([[4, 5], [6, -1], [4, 7]]), np.array([0, 0, 0]))
    >>> order, own[order]
    (array([0, 2, 1]), array([[ True,  True],
           [False,  True],
           [ True, False]]))
    """
    # In a sorted order a response has the longest beginning in common with its neighbour. Any order
    # of the tokens will do, so that of their bytes is taken.
    texts = [(prompt, row.tobytes()) for prompt, row in zip(prompt_of_row, tokens)]
    order = np.array(sorted(range(len(tokens)), key=texts.__getitem__), dtype=np.int64)
    alike = tokens[order][1:] == tokens[order][:-1]
    alike &= (prompt_of_row[order][1:] == prompt_of_row[order][:-1])[:, None]
    own = tokens >= 0
    own[order[1:]] &= ~np.logical_and.accumulate(alike, axis=1)
    return order, own


def _paths(tokens: np.ndarray, order: np.ndarray, own: np.ndarray, start: int) -> np.ndarray:
    """Where each token of a row stands among the packed ones, (R, T), -1 for padding.

    Rows are packed in the given order from the place `start` on, each with its own tokens (R, T)
    alone. The others stand where the nearest row before has them.
    """
    places = np.where(own[order], start - 1 + np.cumsum(own[order]).reshape(own.shape), -1)
    # Places grow from row to row, so that of the nearest row is the largest one so far.
    places = np.maximum.accumulate(places, axis=0)
    paths = np.empty_like(places)
    paths[order] = np.where(tokens[order] >= 0, places, -1)
    return paths


def _trimmed(places: np.ndarray) -> np.ndarray:
    """Without the columns that hold padding only."""
    return places[:, (places >= 0).any(axis=0)]


def _of_like_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows in sets, such that none is shorter than half of the longest of its set."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    parts = []
    while len(order):
        alike = lengths[order] >= SHORTEST * lengths[order[0]]
        parts.append(order[alike])
        order = order[~alike]
    return parts


# Registered once, at import. A model uses it only after `set_attn_implementation(NAME)`. Its masks
# are made as for `sdpa`, which is what it is without a packing.
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
