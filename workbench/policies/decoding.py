"""How responses are sampled, one token of every row at a time.

`sample` is the loop. What computes the logits is a decoder with a batch of rows as its state:
`CachedDecoder` here asks the model itself and serves every architecture, and
`merged.MergedDecoder` computes the usual ones with fewer operations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import Cache, TopKLogitsWarper, TopPLogitsWarper

from workbench.policies import END, GO_ON, STOP, Growing, Plan, Sampling
from workbench.pools import Problem
from workbench.rollouts import Ragged
from workbench.utils.groups import place_within
from workbench.utils.seeding import derive, generator
from workbench.utils.validation import counts as whole_counts

BLOCK = 1024  # tokens of the vocabulary whose probabilities are summed one by one
STOP_TOKENS = 32  # newest tokens searched for a stop string, besides one for each of its bytes
LOGPROBS_OF_MARGINS = 2  # that an engine tells of a token where margins are asked for
MOST_NEVER = 1024  # tokens that vLLM leaves out for a request
NO_CHANCE = -100.0  # what vLLM adds to their logits, the least that it takes
WORTH_COPYING = 0.85  # a cache is copied when fewer of its rows than this are still going

# A signal of some of the responses that go on, by their places among these; and the two signals
# that a course may read, margins and hidden states.
OfPlaces = Callable[[np.ndarray], np.ndarray]
Signals = tuple[OfPlaces, OfPlaces]


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of one call of `Policy.generate`, and how many responses each of them gets.

    The responses to a prompt stand together.

    Attributes
    ----------
    problems : list of P Problem
    counts : (P,) int64
    seeds : list of P int
    owner : (R,) int64
        Number of the prompt of each response.
    """

    problems: list[Problem]
    counts: np.ndarray
    seeds: list[int]
    owner: np.ndarray

    @classmethod
    def of(cls, prompts: Sequence[Any], counts: Any, seed: int | Sequence[int]) -> PromptBatch:
        """Checked arguments of `Policy.generate`; a text is a problem without an answer."""
        problems = [
            prompt if isinstance(prompt, Problem) else Problem(str(i), prompt, "")
            for i, prompt in enumerate(prompts)
        ]
        counts = whole_counts("counts", counts)
        if counts.shape != (len(problems),):
            raise ValueError(
                f"counts has shape {counts.shape}: one count for each of the {len(problems)} "
                "prompts is needed"
            )
        if not isinstance(seed, Sequence | np.ndarray):
            seed = [derive(seed, i) for i in range(len(problems))]
        owner = np.repeat(np.arange(len(problems)), counts)
        return cls(problems, counts, [int(each) for each in seed], owner)

    @property
    def draw(self) -> np.ndarray:
        """Which response to its prompt each one is, from 0, (R,)."""
        return place_within(self.owner)

    @property
    def seed_of_each(self) -> list[int]:
        """A seed for each response, for samplers that take one.

        It depends on the prompt's seed and on the number of the draw alone, so it does not matter
        what else is asked for.
        """
        pairs = zip(self.owner, self.draw)
        return [derive(self.seeds[i], "response", int(number)) for i, number in pairs]

    @property
    def columns(self) -> dict[str, Any]:
        """What the table of rollouts says of the problems."""
        return {
            "problem": np.array([each.id for each in self.problems], dtype=str)[self.owner],
            "level": np.array([each.level for each in self.problems], dtype=np.int64)[self.owner],
            "answer": np.array([each.answer for each in self.problems], dtype=object)[self.owner],
            "draw": self.draw,
        }


@dataclass
class Samples:
    """R sampled responses of at most T tokens.

    Attributes
    ----------
    tokens : (R, T) int32, 0 beyond the end of a row
    logprobs : (R, T) float32, 0 beyond the end of a row
    entropies : (R, T) float32, 0 beyond the end of a row
        Of the distribution that each token was drawn from, in nats; NaN where the sampler does not
        tell.
    lengths : (R,) int64
    truncated : (R,) bool
    stopped : (R,) bool
        Whether a course stopped it.
    lost : (R,) int64
        Tokens that an engine had sampled beyond the place where the response was ended or stopped.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    stopped: np.ndarray
    lost: np.ndarray

    @classmethod
    def empty(cls, rows: int, width: int) -> Samples:
        """Rows of which nothing has been sampled yet."""
        return cls(
            np.zeros((rows, width), dtype=np.int32),
            np.zeros((rows, width), dtype=np.float32),
            np.zeros((rows, width), dtype=np.float32),
            np.zeros(rows, dtype=np.int64),
            # A row counts as truncated until `sample` has seen its end.
            np.ones(rows, dtype=bool),
            np.zeros(rows, dtype=bool),
            np.zeros(rows, dtype=np.int64),
        )

    @classmethod
    def by_engine(cls, tokens: Ragged, logprobs: Ragged, truncated: np.ndarray) -> Samples:
        """The responses of an engine, which gives no entropies."""
        samples = cls.empty(*tokens.mask().shape)
        samples.tokens[:] = tokens.padded()
        samples.logprobs[:] = logprobs.padded()
        samples.entropies[:] = np.nan
        samples.lengths[:] = tokens.lengths
        samples.truncated[:] = truncated
        return samples

    @classmethod
    def concat(cls, parts: Sequence[Samples]) -> Samples:
        """The rows of all parts, in order; all parts have the same width."""
        columns = zip(*(vars(part).values() for part in parts))
        return cls(*map(np.concatenate, columns))

    def take(self, rows: np.ndarray) -> Samples:
        """The given rows, in that order."""
        return Samples(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class Request:
    """N responses to sample, and what ends them.

    Attributes
    ----------
    policy : TransformersPolicy
    sampling : Sampling
    plan : Plan
    owner : (N,) int64
        The text that each response goes on from.
    uniforms : (N, T) float64
        One number from [0, 1) for each token that a response may draw. The tokens of a response
        depend on its own numbers only, whatever else is in the batch.
    room : (N,) int64
        Tokens that each response may draw, at most T.
    rows : (N,) int64
        Number of each response in what was asked for as a whole.
    """

    policy: Any
    sampling: Sampling
    plan: Plan
    owner: np.ndarray
    uniforms: np.ndarray
    room: np.ndarray
    rows: np.ndarray

    def take(self, rows: np.ndarray) -> Request:
        """The same for some of the responses."""
        return replace(
            self,
            owner=self.owner[rows],
            uniforms=self.uniforms[rows],
            room=self.room[rows],
            rows=self.rows[rows],
        )

    def ends(
        self,
        samples: Samples,
        going: np.ndarray,
        step: int,
        margins: OfPlaces,
        states: OfPlaces,
    ) -> np.ndarray:
        """Which of the responses `going` (n,) end with the token of this step, (n,) bool.

        Parameters
        ----------
        samples : Samples
            Where it is marked what becomes of them.
        going : (n,)
        step : int
        margins, states : functions
            What `Growing` tells of the responses `going[places]`, by the places.
        """
        # A stop string may be spread over several tokens. Copying all tokens so far at every step
        # would take longer and longer.
        longest = STOP_TOKENS + max((len(each.encode()) for each in self.sampling.stop), default=0)
        newest = samples.tokens[going, max(0, step + 1 - longest) : step + 1]
        ended = self.policy.ends(newest, self.sampling.stop)
        samples.truncated[going[ended]] = False
        over = ended | (step + 1 >= self.room[going])
        if self.plan.stop is None or over.all():
            return over
        left = np.flatnonzero(~over)
        rows = going[left]

        def tokens(last: int) -> np.ndarray:
            return samples.tokens[rows, max(0, step + 1 - last) : step + 1]

        growing = Growing(
            rows=self.rows[rows],
            step=step + 1,
            tokens=tokens,
            texts=lambda last: self.policy.decode(tokens(last).tolist()),
            margin=lambda: margins(left),
            states=lambda: states(left),
        )
        verdicts = np.asarray(self.plan.stop(growing))
        if verdicts.shape != rows.shape or not np.isin(verdicts, (GO_ON, STOP, END)).all():
            raise ValueError(
                f"course: its stop returned {verdicts.tolist()} for {len(rows)} rollouts"
            )
        samples.stopped[rows[verdicts == STOP]] = True
        samples.truncated[rows[verdicts != GO_ON]] = False
        over[left] = verdicts != GO_ON
        return over


def signals_of(logits: torch.Tensor, states: torch.Tensor | None, sources: np.ndarray) -> Signals:
    """What `Request.ends` asks of the newest tokens, where our own loop draws.

    Parameters
    ----------
    logits : (R, V) tensor
        That the newest tokens were drawn from.
    states : (R, H) tensor, optional
        That these logits were computed from.
    sources : (n,)
        The row of the logits that each response belongs to.
    """

    def margins(of: np.ndarray) -> np.ndarray:
        largest = logits[torch.as_tensor(sources[of])].float().softmax(-1).topk(2).values
        return (largest[:, 0] - largest[:, 1]).double().cpu().numpy()

    if states is None:
        return margins, _no_states

    def hidden(of: np.ndarray) -> np.ndarray:
        return states[torch.as_tensor(sources[of])].float().cpu().numpy()

    return margins, hidden


def _signals_of_engine(margins: Ragged | None, rows: np.ndarray, place: int) -> Signals:
    """What `Request.ends` asks of the tokens at one place of an engine's responses `rows`, (n,)."""

    def gaps(of: np.ndarray) -> np.ndarray:
        if margins is None:
            raise ValueError(
                "course: it reads the margins, which an engine gives at temperature 1 or 0 and "
                "without top_p and top_k"
            )
        return margins.values[margins.offsets[rows[of]] + place].astype(np.float64)

    return gaps, _no_states


def _no_states(of: np.ndarray) -> np.ndarray:
    raise ValueError(
        "course: it reads hidden states, which are there from the second token on, for a plan with "
        "states=True and with engine='transformers'"
    )


RECURRENT = ("mamba", "mamba2", "falcon_mamba")
CACHES = ("cache", "cache_params", "past_key_values")


class CachedDecoder:
    """Any causal language model on the cache that it makes itself.

    `MergedDecoder` has the same methods. Both are a batch of rows in the middle of decoding.
    """

    compacts_at_once = False  # whether ended rows are best dropped as soon as there are any
    states: torch.Tensor | None = None  # (R, H), that the latest logits were computed from

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.cache: Any = None
        # Without attention a model wants a mask of the new tokens alone, of which none is padding.
        self.is_recurrent = policy.model.config.model_type in RECURRENT
        # What the model calls its cache: newer versions of transformers have one word for all.
        known = inspect.signature(policy.decoder.forward).parameters
        self.word = next(word for word in CACHES if word in known or word == CACHES[-1])

    def begin(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits (P, V) after the prompts, padded on the left, with a mask (P, t)."""
        self.mask = mask
        self.positions = mask.sum(1)  # of the next token of each row
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return self.policy.sampled_logits(self._newest_states(ids, positions))

    def spread(self, rows: np.ndarray) -> None:
        """Go on with the rows (R,) in place of the present ones; repeats are allowed."""
        index = torch.as_tensor(rows, device=self.mask.device)
        # `reorder_cache` knows the layers of every kind, those with recurrent states too. A model
        # with a cache of its own selects rows in its own way.
        has_own = type(self.cache).batch_select_indices is not Cache.batch_select_indices
        select = self.cache.batch_select_indices if has_own else self.cache.reorder_cache
        select(index)
        self.mask = self.mask[index]
        self.positions = self.positions[index]

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (R, V) after one more token (R,) in every row."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.states = self._newest_states(tokens[:, None], self.positions[:, None])
        self.positions = self.positions + 1
        return self.policy.sampled_logits(self.states)

    def _newest_states(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The final hidden state of the last token of every row."""
        # Prompts are padded on the left, so a token's place in the cache is not its position in its
        # own text: the positions are passed explicitly.
        found = self.policy.decoder(
            input_ids=ids,
            attention_mask=self.mask if self.cache is None or not self.is_recurrent else None,
            position_ids=positions,
            use_cache=True,
            **{self.word: self.cache},
        )
        self.cache = found[self.word if self.word in found else CACHES[-1]]
        return found.last_hidden_state[:, -1]

    def branch(self, children: np.ndarray) -> np.ndarray:
        """Go on with children[i] copies of each row i, (R,) int; 0 drops a row.

        Returns which of the old rows each new row is a copy of, (R',). Their order is the
        decoder's choice.
        """
        order = np.repeat(np.arange(len(children)), children)
        self.spread(order)
        return order


class WholeDecoder(CachedDecoder):
    """Any causal language model without a cache, whose rows are computed anew for every token.

    It computes what the trainer does with padded rows, and takes longer the longer they are.
    """

    def begin(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `CachedDecoder.begin`."""
        self.lengths = mask.sum(1)
        # Padded on the right, where a causal model cannot see it.
        self.ids = ids.gather(1, mask.argsort(dim=1, descending=True, stable=True))
        return self._logits()

    def spread(self, rows: np.ndarray) -> None:
        """See `CachedDecoder.spread`."""
        index = torch.as_tensor(rows, device=self.ids.device)
        self.ids, self.lengths = self.ids[index], self.lengths[index]

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `CachedDecoder.advance`."""
        self.ids = torch.nn.functional.pad(self.ids, (0, 1))
        self.ids.scatter_(1, self.lengths[:, None], tokens[:, None])
        self.lengths = self.lengths + 1
        return self._logits()

    def _logits(self) -> torch.Tensor:
        """Logits (R, V) after the last token of every row."""
        ids = self.ids[:, : int(self.lengths.max())]
        states = self.policy.decoder(input_ids=ids, use_cache=False).last_hidden_state
        newest = (self.lengths - 1)[:, None, None].expand(-1, -1, states.shape[-1])
        self.states = states.gather(1, newest)[:, 0]
        return self.policy.sampled_logits(self.states)


def sample(
    decoder: Any,
    logits: torch.Tensor,
    row_of: np.ndarray,
    request: Request,
    share_prefixes: bool = False,
) -> Samples:
    """Draw N responses with a decoder that holds their prompts.

    Parameters
    ----------
    decoder : CachedDecoder or MergedDecoder
        Its R rows hold prompts.
    logits : (R, V) tensor
        Of the first token after each row.
    row_of : (N,)
        The row that each response goes on from.
    request : Request
    share_prefixes : bool
        Keep one row for all responses that have drawn the same tokens so far. Each response has a
        row of its own otherwise, and `row_of` must name each row once.
    """
    size, width = request.uniforms.shape
    samples = Samples.empty(size, width)
    going = np.arange(size)  # the responses that have not ended
    # Each pass draws a token for every response that goes on, and then tells the decoder which rows
    # are still needed, and what comes next in each of them.
    for step in range(width):
        of_step = torch.as_tensor(request.uniforms[going, step], device=logits.device)
        sources = torch.as_tensor(row_of, device=logits.device)
        tokens, logprobs, entropies = draw_tokens(
            logits.float(), of_step, request.sampling, sources, request.policy.never
        )
        chosen = tokens.cpu().numpy()
        samples.tokens[going, step] = chosen
        samples.logprobs[going, step] = logprobs.cpu().numpy()
        samples.entropies[going, step] = entropies.cpu().numpy()
        samples.lengths[going] += 1

        signals = signals_of(logits, decoder.states, row_of)
        ended = request.ends(samples, going, step, *signals)
        # No response has room for more than the last step, so that all have ended by then.
        if ended.all():
            break
        going, row_of, chosen = going[~ended], row_of[~ended], chosen[~ended]
        row_of, rows = _next_rows(decoder, row_of, chosen, len(logits), share_prefixes)
        # A row that has ended and is still there goes on with any token: nobody reads what follows.
        newest = np.zeros(rows, dtype=np.int64)
        newest[row_of] = chosen
        logits = decoder.advance(torch.as_tensor(newest, device=logits.device))
    return samples


def sample_by_engine(
    engine: Any, texts: Ragged, seeds: list[int], request: Request, chunk: int
) -> Samples:
    """Responses by an engine, some of which a course may stop while they grow.

    With a course, the engine returns `chunk` tokens of every response that goes on, and the course
    is then asked about one after the other. So what it decides does not depend on the size of the
    chunks. What the engine had sampled beyond the place where a response ends is lost.

    Parameters
    ----------
    engine : workbench.policies.vllm.Engine or workbench.policies.served.ServedEngine
        With the weights of this moment.
    texts : Ragged of int32
        What each response goes on from.
    seeds : R ints
        Of the first chunks. Each later chunk has a seed of its own, which is derived from these.
    request : Request
        Its uniform numbers are not used.
    chunk : int
        Tokens.
    """
    sampling, policy = request.sampling, request.policy
    never = [] if policy.never is None else policy.never.tolist()
    if request.plan.stop is None:
        room = request.room
        samples, _ = engine.respond(texts, seeds, sampling, policy.end_ids, never, room)
        return samples
    samples = Samples.empty(len(texts), int(request.room.max()))
    samples.entropies[:] = np.nan
    gives_margins = sampling.temperature in (0, 1) and engine.comparable(sampling)
    going = np.arange(len(texts))
    start = 0
    while len(going):
        so_far = Ragged.of_padded(samples.tokens[going], samples.lengths[going])
        of_chunk = [derive(seeds[i], "chunk", start) if start else seeds[i] for i in going]
        part, margins = engine.respond(
            texts.take(going).then(so_far, np.int32),
            of_chunk,
            # A text to stop at may begin in one chunk and end in the next: `Request.ends` finds it.
            replace(sampling, stop=()),
            policy.end_ids,
            never,
            np.minimum(request.room[going] - start, chunk),
            margins=gives_margins,
        )
        row_of = np.arange(len(going))  # the row of each response in this part
        for place in range(chunk):
            if (part.lengths[row_of] <= place).any():
                raise RuntimeError("the engine ended a response at a token that is no end token")
            step = start + place
            samples.tokens[going, step] = part.tokens[row_of, place]
            samples.logprobs[going, step] = part.logprobs[row_of, place]
            samples.lengths[going] += 1
            signals = _signals_of_engine(margins, row_of, place)
            ended = request.ends(samples, going, step, *signals)
            samples.lost[going[ended]] = part.lengths[row_of[ended]] - place - 1
            going, row_of = going[~ended], row_of[~ended]
            if not len(going):
                break
        start += chunk
    return samples


def _next_rows(
    decoder: Any, row_of: np.ndarray, tokens: np.ndarray, rows: int, share_prefixes: bool
) -> tuple[np.ndarray, int]:
    """Let a decoder of R rows drop those that nobody needs and copy those whose responses part.

    row_of (n,) is the row of each response that goes on, tokens (n,) what each of them has drawn.
    Returns the rows (n,) after that, and how many there are.
    """
    vocabulary = 1
    branches = row_of
    if share_prefixes:
        # Responses of one row that have drawn the same token stay together.
        vocabulary = tokens.max() + 1
        branches = row_of * vocabulary + tokens
    else:
        # A decoder that copies its whole cache waits until enough rows have ended.
        waits = not decoder.compacts_at_once and len(row_of) >= WORTH_COPYING * rows
        if waits or len(row_of) == rows:
            return row_of, rows
    found, branch_of = np.unique(branches, return_inverse=True)
    # The branches are sorted by the row that they come from, so sorting the decoder's order by the
    # same brings each branch to its new row.
    order = decoder.branch(np.bincount(found // vocabulary, minlength=rows))
    return np.argsort(order, kind="stable")[branch_of], len(order)


def draw_tokens(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    sampling: Sampling,
    rows: torch.Tensor | None = None,
    never: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A token from each of N distributions, its log-probability and the entropy in nats, (N,) each.

    Parameters
    ----------
    logits : (R, V) float32
    uniforms : (N,) float64
        From [0, 1).
    sampling : Sampling
    rows : (N,) int64, optional
        The row of the logits that each token is drawn from. Default: each row once.
    never : (n,) int64, optional
        Tokens that are not drawn. As with `top_k`, log-probabilities stay those of the whole
        distribution.
    """
    if rows is None:
        rows = torch.arange(len(logits), device=logits.device)
    greedy = sampling.temperature == 0
    # What depends on the distribution alone is computed once for all tokens that are drawn from it.
    # Log-probabilities and entropy are those of the whole tempered distribution, before `restrict`
    # cuts it: the trainer computes the same from its logits.
    is_plain = greedy or sampling.temperature == 1
    tempered = logits if is_plain else logits / sampling.temperature
    logprobs = torch.log_softmax(tempered, dim=-1)
    del tempered  # as large as all the logits
    probabilities = logprobs.exp()
    # An impossible token has 0 times -inf, which counts as 0.
    entropies = -(probabilities * logprobs).nan_to_num_(nan=0.0).sum(-1)
    if never is not None:
        probabilities.index_fill_(1, never, 0.0)
        logits = logits.index_fill(1, never, -torch.inf)
    if greedy:
        tokens = logits.argmax(-1)[rows]
    else:
        tokens = inverse_cdf(restrict(probabilities, sampling), uniforms, rows)
    return tokens, logprobs[rows, tokens], entropies[rows]


def inverse_cdf(
    probabilities: torch.Tensor, uniforms: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """The first token (N,) whose running sum exceeds the given share of its row's total.

    probabilities (R, V) need not sum to 1; uniforms (N,) float64 from [0, 1) and rows (N,) int64
    belong together. Sums are in float64, so that rare tokens of a large vocabulary keep their
    chance, but only those of one block of the vocabulary are held for each token.

    >>> of_one_row = torch.tensor([[0.5, 0.0, 0.25]])
    >>> inverse_cdf(of_one_row, torch.tensor([0.0, 0.66, 0.67]), torch.tensor([0, 0, 0]))
    tensor([0, 0, 2])
    """
    size = probabilities.shape[1]
    if size <= BLOCK:
        sums = probabilities.cumsum(-1, dtype=torch.float64).index_select(0, rows)
        return _first_above(sums, uniforms * sums[:, -1])
    # Two steps in place of one running sum over the whole vocabulary: first the block in which the
    # target lies, then the token within that block. Zeros fill up the last block.
    padded = torch.nn.functional.pad(probabilities, (0, -size % BLOCK))
    blocks = padded.view(len(padded), -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniforms * sums[rows, -1]
    block = _first_above(sums[rows], target)
    before = torch.nn.functional.pad(sums, (1, 0))[rows, block]
    inside = blocks[rows, block].cumsum(-1, dtype=torch.float64)
    token = block * BLOCK + _first_above(inside, target - before)
    # Rounding may leave the target beyond the last sum, and then the place may be one of the zeros.
    return token.clamp(max=size - 1)


def _first_above(sums: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Column (R,) of the first of the ascending sums (R, K) above each target (R,), the last one at
    most.
    """
    # right=True passes over sums equal to the target, and with them tokens of probability 0.
    column = torch.searchsorted(sums, targets[:, None], right=True)[:, 0]
    return column.clamp_(max=sums.shape[1] - 1)


def restrict(probabilities: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Zero what top_k and top_p exclude, (R, V); the most likely token always stays.

    Everything as likely as the last of the top k stays, so ties may leave more than k. The mass of
    top_p is a share of what top_k has left.
    """
    if not sampling.top_k and sampling.top_p == 1:
        return probabilities
    scores = probabilities.log()
    if sampling.top_k:
        scores = TopKLogitsWarper(int(sampling.top_k))(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return probabilities.where(scores > -torch.inf, 0.0)


def uniforms_of(seeds: Sequence[int], counts: np.ndarray, width: int) -> np.ndarray:
    """Uniform numbers (R, T) of all responses, from one generator for each prompt's seed."""
    parts = [generator(seed, "tokens").random((n, width)) for seed, n in zip(seeds, counts)]
    return np.concatenate(parts)
