"""The table that travels: one row a rollout, passed forward through every slot of a round.

`Rollouts` is a frozen set of columns. Nothing changes it in place; `assign` and `take` return new
tables. `Ragged` holds columns whose rows differ in length (tokens, log-probabilities) in one flat
array. `Context` is what a slot may know of its round besides the rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.utils.groups import keys
from workbench.utils.names import GRADED
from workbench.utils.seeding import generator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Context:
    """What a slot may know of its round besides the rollouts.

    Attributes
    ----------
    seed : int
        Seed of the run.
    round : int
        Number of the round, from 1.
    epoch : int
        The pass over the pool of problems in which this round begins, from 0.
    policy : Policy, optional
        The model that samples and is trained.
    max_new_tokens : int, optional
        The longest response that the sampler allows, in tokens.
    temperature : float
        The temperature of the sampling.
    sampled : Rollouts, optional
        Everything that was sampled in this round, whether or not it went past the allocator; there
        once the allocator has ended.
    planned : int, optional
        Rounds that the run was asked for.
    taken : frozenset of str
        Ids of the problems that are in the round already; only a curriculum reads it.
    """

    seed: int = 0
    round: int = 1
    epoch: int = 0
    policy: Any = None
    max_new_tokens: int | None = None
    temperature: float = 1.0
    sampled: Rollouts | None = None
    planned: int | None = None
    taken: frozenset[str] = frozenset()

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """A NumPy generator for a purpose in this round, such as `context.rng("selector")`.

        The same seed, purpose and round always give the same draws, so a resumed run repeats them.
        """
        return generator(self.seed, *purpose, self.round)


@dataclass(frozen=True)
class Ragged:
    """R rows of different lengths in one flat array.

    Attributes
    ----------
    values : (N,)
        The rows end to end; row i is `values[offsets[i] : offsets[i + 1]]`.
    offsets : (R + 1,) int64

    Examples
    --------
    >>> rows = Ragged.of([[1, 2], [3]], np.int32)
    >>> rows[1], rows.lengths
    (array([3], dtype=int32), array([2, 1]))
    >>> rows.padded(fill=-1)
    array([[ 1,  2],
           [ 3, -1]], dtype=int32)
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Any], dtype: Any) -> Ragged:
        """Make one from a sequence of R sequences."""
        rows = [np.asarray(row, dtype=dtype) for row in rows]
        values = np.concatenate(rows) if rows else np.empty(0, dtype)
        return cls.of_lengths(values, np.array([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def of_lengths(cls, values: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Make one from values (N,) of R rows end to end and the lengths (R,) of the rows."""
        return cls(values, _offsets(lengths))

    @classmethod
    def of_padded(cls, padded: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Make one from right-padded values (R, T) and the lengths (R,) of the rows."""
        lengths = np.asarray(lengths, dtype=np.int64)
        inside = np.arange(padded.shape[1]) < lengths[:, None]
        return cls.of_lengths(padded[inside], lengths)

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, in order."""
        values = np.concatenate([part.values for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(values, _offsets(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]  # raises IndexError, and counts negative rows from the end
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, (R,) int64."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes that the values and the offsets take."""
        return self.values.nbytes + self.offsets.nbytes

    def take(self, index: np.ndarray) -> Ragged:
        """The rows `index` (K,), in that order; repeats are allowed."""
        lengths = self.lengths[index]
        offsets = _offsets(lengths)
        # Positions of all taken values in the old flat array at once: a running number, shifted row
        # by row by the distance between old and new start.
        shift = self.offsets[:-1][index] - offsets[:-1]
        flat = np.arange(offsets[-1]) + np.repeat(shift, lengths)
        return Ragged(self.values[flat], offsets)

    def first(self, lengths: np.ndarray) -> Ragged:
        """The first lengths (R,) values of each row, which has at least as many.

        >>> Ragged.of([[1, 2, 3], [4]], np.int32).first(np.array([2, 0])).values
        array([1, 2], dtype=int32)
        """
        kept = self.places() < np.repeat(lengths, self.lengths)
        return Ragged.of_lengths(self.values[kept], lengths)

    def then(self, others: Ragged, dtype: Any) -> Ragged:
        """Each row with the same row of the others behind it."""
        return Ragged.of([np.concatenate(pair) for pair in zip(self, others)], dtype)

    def places(self) -> np.ndarray:
        """Place of each value in its row, (N,) int64."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths)

    def mask(self) -> np.ndarray:
        """(R, T) bool, True where a row has a value; T is the longest row."""
        return np.arange(self.lengths.max(initial=0)) < self.lengths[:, None]

    def padded(self, fill: float = 0, side: str = "right") -> np.ndarray:
        """(R, T) with `fill` beyond the end of each row, or before its start with side="left"."""
        # A mask is filled in row order, so one assignment serves either side.
        mask = self.mask() if side == "right" else self.mask()[:, ::-1]
        out = np.full(mask.shape, fill, dtype=self.values.dtype)
        out[mask] = self.values
        return out

    def distinct(self) -> tuple[Ragged, np.ndarray]:
        """Each different row once, in order of first appearance, and each row's number (R,)."""
        rows = [row.tobytes() for row in self]
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        number_of_row = np.array([numbers[row] for row in rows], dtype=np.int64)
        _, first = np.unique(number_of_row, return_index=True)
        return self.take(first), number_of_row

    def means(self) -> np.ndarray:
        """Mean of each row, (R,) float64; NaN for an empty row."""
        # All rows are summed in one pass; `minlength` keeps empty rows at the end.
        totals = np.bincount(
            np.repeat(np.arange(len(self)), self.lengths), self.values, minlength=len(self)
        )
        return np.divide(
            totals, self.lengths, out=np.full(len(self), np.nan), where=self.lengths > 0
        )


def _column(dtype: Any, neutral: Any = None) -> Any:
    """A column of the table: its type, and its entries where none are given.

    Without `neutral` its rows differ in length and are empty where none are given. Their types have
    32 bits, since these columns are the bulk of a table.
    """
    return field(default=None, metadata={"dtype": dtype, "neutral": neutral})


@dataclass(frozen=True)
class Rollouts:
    """R rollouts as columns. Only `problem` is required; every other column has a neutral default.

    Attributes
    ----------
    problem : (R,) str
        Stable id of the problem.
    level : (R,) int64
        Difficulty level of the problem.
    prompt : Ragged of int32
        Prompt tokens.
    response : Ragged of int32
        Sampled tokens, the end token included.
    old_logprobs : Ragged of float32
        Log-probability of each sampled token under the policy that sampled it, in nats.
    text : (R,) object
        The response as text.
    answer : (R,) object
        Gold answer of the problem.
    truncated : (R,) bool
        Whether the length limit ended the response.
    token_entropy : Ragged of float32
        Entropy of the sampling distribution at each sampled token, in nats; rows are empty where
        the sampler does not tell.
    entropy : (R,) float64
        Its mean over the response's tokens.
    reward : (R,) float64
        What advantages read; NaN until verified.
    correct : (R,) bool
        The verifier's verdict; False where there is none.
    status : (R,) str
        The verifier's reason, one of `verifiers.STATUSES`, or "graded" where a reward is given
        without a verdict.
    draw : (R,) int64
        Number of the rollout within its problem and round, from 0.
    stage : (R,) int64
        The allocator's request that asked for it, from 0.
    round : (R,) int64
        The round that sampled it.
    columns : dict
        Further columns, name to (R,) or Ragged: reward parts, advantage, selected, score and so on.
    """

    problem: np.ndarray
    level: np.ndarray = _column(np.int64, 0)
    prompt: Ragged = _column(np.int32)
    response: Ragged = _column(np.int32)
    old_logprobs: Ragged = _column(np.float32)
    token_entropy: Ragged = _column(np.float32)
    text: np.ndarray = _column(object, "")
    answer: np.ndarray = _column(object, "")
    truncated: np.ndarray = _column(bool, False)
    entropy: np.ndarray = _column(np.float64, np.nan)
    reward: np.ndarray = _column(np.float64, np.nan)
    correct: np.ndarray = _column(bool, False)
    status: np.ndarray = _column(str, "")
    draw: np.ndarray = _column(np.int64, 0)
    stage: np.ndarray = _column(np.int64, 0)
    round: np.ndarray = _column(np.int64, 0)
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = np.asarray(self.problem, dtype=str)
        own: dict[str, Any] = {"problem": problem}
        for name, (dtype, neutral) in _OWN.items():
            value = getattr(self, name)
            if neutral is None:
                # R rows of length 0, as from an engine that does not tell log-probabilities.
                nothing = np.zeros(len(problem) + 1, dtype=np.int64)
                own[name] = Ragged(np.empty(0, dtype), nothing) if value is None else value
            else:
                value = np.full(len(problem), neutral, dtype) if value is None else value
                own[name] = np.asarray(value, dtype=dtype)
        own["columns"] = {
            name: value if isinstance(value, Ragged) else np.asarray(value)
            for name, value in self.columns.items()
        }
        vars(self).update(own)  # the table is frozen only once it is made
        for name, value in self.items():
            if len(value) != len(problem):
                raise ValueError(f"column {name} has {len(value)} rows, problem has {len(problem)}")

    def __repr__(self) -> str:
        known = self.reward[np.isfinite(self.reward)]
        earned = f"mean reward {known.mean():.3g}" if len(known) else "not verified"
        return f"Rollouts({len(self)} of {len(np.unique(self.problem))} problems, {earned})"

    def _repr_html_(self) -> str:
        return self.frame().to_html(max_rows=10)

    def __len__(self) -> int:
        return len(self.problem)

    def __getitem__(self, name: str) -> Any:
        if name in self.columns:
            return self.columns[name]
        if name == "group":
            return self.group
        if name in self:
            return vars(self)[name]
        raise ValueError(f"rollouts: column {name!r} is missing")

    def __contains__(self, name: object) -> bool:
        return name in self.columns or name in _OWN or name == "problem"

    def items(self) -> list[tuple[str, Any]]:
        """(name, column) for every column, the further ones last."""
        own = [(name, column) for name, column in vars(self).items() if name != "columns"]
        return [*own, *self.columns.items()]

    @property
    def group(self) -> np.ndarray:
        """Keys (R,) str of the groups that advantages are taken over.

        The further column `group` where there is one, as a replay buffer sets it. Otherwise the
        problem, and with it the further column `start` where a course gives a problem several.
        """
        if "group" in self.columns:
            return self.columns["group"]
        if "start" not in self.columns:
            return self.problem
        start = self.columns["start"]
        return np.where(start > 0, keys(self.problem, start), self.problem)

    @property
    def judged(self) -> bool:
        """Whether every rollout has a verdict. Of a graded one nothing is known but its reward."""
        return not (self.status == GRADED).any()

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each response, (R,) int64."""
        return self.response.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of the content of all columns; of texts their characters are counted.

        It depends on what is stored alone. What NumPy takes for a column of texts also depends on
        the longest text that the column once held, which is another one after a resume.
        """
        if not len(self):
            return 0
        total = 0
        for _, column in self.items():
            is_text = not isinstance(column, Ragged) and column.dtype.kind in "UO"
            total += sum(map(len, column.tolist())) if is_text else column.nbytes
        return total

    def take(self, index: Any) -> Rollouts:
        """The rows `index` (K,) int64, in that order; repeats are allowed.

        A mask (R,) is taken as well.
        """
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return Rollouts.of_columns(
            {
                name: column.take(index) if isinstance(column, Ragged) else column[index]
                for name, column in self.items()
            }
        )

    def assign(self, **columns: Any) -> Rollouts:
        """A new table with the given columns replaced or added, each (R,) or Ragged."""
        return Rollouts.of_columns({**dict(self.items()), **columns})

    def drop(self, names: Iterable[str]) -> Rollouts:
        """A new table without the further columns in `names`; unknown names are passed over."""
        left_out = set(names)
        kept = {name: value for name, value in self.columns.items() if name not in left_out}
        return replace(self, columns=kept)

    def problems(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the problems in order of first appearance (P,), and each row's number (R,)."""
        # NumPy numbers the ids in their sorted order; `rank` turns that into the order of
        # appearance.
        ids, first, inverse = np.unique(self.problem, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return ids[order], rank[inverse]

    def frame(self) -> pd.DataFrame:
        """One row a rollout as a DataFrame: scalar columns and the response length, no tokens."""
        import pandas as pd

        data = {name: value for name, value in self.items() if not isinstance(value, Ragged)}
        return pd.DataFrame({**data, "length": self.lengths})

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> Rollouts:
        """Make a table from a dict of all its columns, own and further ones."""
        further = dict(columns)
        names = ("problem", *_OWN)
        own = {name: further.pop(name) for name in names if name in further}
        return cls(**own, columns=further)

    @staticmethod
    def concat(parts: Iterable[Rollouts]) -> Rollouts:
        """The rows of all parts, in order.

        Every part that has rows must have the same columns.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("parts=[]: at least one table is needed")
        parts = [part for part in parts if len(part)] or parts[:1]
        # A missing column is refused here. Whoever joins tables knows what it should be filled
        # with, as replay does for old rows.
        names = dict(parts[0].items()).keys()
        for part in parts[1:]:
            unmatched = dict(part.items()).keys() ^ names
            if unmatched:
                raise ValueError(f"parts differ in columns: {', '.join(sorted(unmatched))}")
        joined = {}
        for name, column in parts[0].items():
            join = Ragged.concat if isinstance(column, Ragged) else np.concatenate
            joined[name] = join([part[name] for part in parts])
        return Rollouts.of_columns(joined)


# The columns of the class besides `problem`: name -> type and neutral default.
_OWN = {
    column.name: (column.metadata["dtype"], column.metadata["neutral"])
    for column in fields(Rollouts)
    if column.metadata
}


class NonFinite(FloatingPointError):
    """A reward, an advantage, a loss or a gradient is not finite.

    `rollouts` holds the rows that caused it; no weight was changed.
    """

    def __init__(self, message: str, rollouts: Rollouts) -> None:
        super().__init__(message)
        self.rollouts = rollouts


def spread(values: Any, rows: np.ndarray, size: int) -> np.ndarray:
    """A column (size,) float64 with values (K,) at the rows (K,), and NaN elsewhere."""
    column = np.full(size, np.nan)
    column[rows] = values
    return column


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
