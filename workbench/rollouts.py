"""The table that travels: one row a rollout, passed forward through every slot of a round.

`Ragged` holds rows of different lengths (tokens, log-probabilities) in one flat array.
`Rollouts` is a frozen set of columns; nothing changes it in place, `assign` returns a new table.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from workbench.utils.seeding import generator


@dataclass(frozen=True)
class Context:
    """What a slot may know of its round besides the rollouts: seed of the run, round (from 1), epoch (from 0), policy."""

    seed: int = 0
    round: int = 1
    epoch: int = 0
    policy: object = None

    def rng(self, *purpose):
        """A NumPy generator for the purpose in this round: `context.rng("selector")`."""
        return generator(self.seed, *purpose, self.round)


@dataclass(frozen=True)
class Ragged:
    """R rows of different lengths in one flat array.

    `values` (N,) holds the rows end to end, row i is `values[offsets[i]:offsets[i + 1]]`; `offsets` (R + 1,) int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows, dtype):
        """From a sequence of R sequences."""
        rows = [np.asarray(row, dtype=dtype) for row in rows]
        values = np.concatenate(rows) if rows else np.empty(0, dtype)
        return cls(values, _offsets(np.array([len(row) for row in rows], dtype=np.int64)))

    @classmethod
    def of_padded(cls, padded, lengths):
        """From (R, T) right-padded values and their lengths (R,)."""
        lengths = np.asarray(lengths, dtype=np.int64)
        return cls(padded[np.arange(padded.shape[1]) < lengths[:, None]], _offsets(lengths))

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, row):
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self):
        """(R,) int64."""
        return np.diff(self.offsets)

    @property
    def nbytes(self):
        """Bytes of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    def take(self, index):
        """Rows `index` (K,), in that order, repeats allowed."""
        lengths = self.lengths[index]
        offsets = _offsets(lengths)
        flat = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][index] - offsets[:-1], lengths)
        return Ragged(self.values[flat], offsets)

    def mask(self):
        """(R, T) bool, True where a row has a value; T is the longest row."""
        return np.arange(self.lengths.max(initial=0)) < self.lengths[:, None]

    def padded(self, fill=0, side="right"):
        """(R, T) with `fill` beyond each row's end, or before its start with `side="left"`."""
        mask = self.mask() if side == "right" else self.mask()[:, ::-1]
        out = np.full(mask.shape, fill, dtype=self.values.dtype)
        out[mask] = self.values
        return out

    @classmethod
    def concat(cls, parts):
        """Rows of all parts, in order."""
        return cls(
            np.concatenate([part.values for part in parts]),
            _offsets(np.concatenate([part.lengths for part in parts])),
        )


@dataclass(frozen=True)
class Rollouts:
    """R rollouts as columns. Only `problem` is required; a missing column takes its neutral value.

    problem   (R,) str    stable id of the problem; rows with one id are one group
    level     (R,) int64  difficulty level of the problem
    prompt    Ragged int32    prompt tokens
    response  Ragged int32    sampled tokens, the end token included
    logprobs  Ragged float32  log-probability of each sampled token under the policy that sampled it (nats)
    text      (R,) object response as text
    answer    (R,) object gold answer of the problem
    truncated (R,) bool   the length limit ended it
    entropy   (R,) float64 mean entropy of the sampling distribution over the response's tokens (nats)
    reward    (R,) float64 what the advantage reads; NaN until verified
    correct   (R,) bool   the verifier's binary verdict
    status    (R,) str    the verifier's status
    draw      (R,) int64  number of the rollout within its problem and round
    stage     (R,) int64  allocation stage that asked for it
    round     (R,) int64  round that sampled it
    columns   dict of further (R,) columns: reward parts, advantage, selected, score ...
    """

    problem: np.ndarray
    level: np.ndarray = None
    prompt: Ragged = None
    response: Ragged = None
    logprobs: Ragged = None
    text: np.ndarray = None
    answer: np.ndarray = None
    truncated: np.ndarray = None
    entropy: np.ndarray = None
    reward: np.ndarray = None
    correct: np.ndarray = None
    status: np.ndarray = None
    draw: np.ndarray = None
    stage: np.ndarray = None
    round: np.ndarray = None
    columns: dict = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "problem", np.asarray(self.problem, dtype=str))
        size = len(self.problem)
        for name, (dtype, neutral) in _SCALARS.items():
            value = getattr(self, name)
            value = (
                np.full(size, neutral, dtype=dtype)
                if value is None
                else np.asarray(value, dtype=dtype)
            )
            object.__setattr__(self, name, value)
        for name, dtype in _RAGGED.items():
            if getattr(self, name) is None:
                object.__setattr__(
                    self, name, Ragged(np.empty(0, dtype), np.zeros(size + 1, dtype=np.int64))
                )
        object.__setattr__(
            self, "columns", {name: np.asarray(value) for name, value in self.columns.items()}
        )
        for name, value in self.items():
            if len(value) != size:
                raise ValueError(f"column {name} has {len(value)} rows, problem has {size}")

    def __len__(self):
        return len(self.problem)

    def __getitem__(self, name):
        return self.columns[name] if name in self.columns else getattr(self, name)

    def items(self):
        """(name, column) for every column, the further ones last."""
        own = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "columns")
        return [*own, *self.columns.items()]

    @property
    def group(self):
        """What advantages are taken over, (R,) str: a further column `group`, or else the problem."""
        return self.columns.get("group", self.problem)

    @property
    def lengths(self):
        """Tokens of each response, (R,) int64."""
        return self.response.lengths

    @property
    def nbytes(self):
        """Bytes of all columns; text and answers count their characters."""
        texts = sum(len(text) for name in ("text", "answer") for text in getattr(self, name))
        return texts + sum(column.nbytes for _, column in self.items())

    def take(self, index):
        """The rows `index` (K,) int64, in that order; repeats allowed."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        pick = {
            name: value.take(index) if isinstance(value, Ragged) else value[index]
            for name, value in self.items()
        }
        return Rollouts.of_columns(pick)

    def assign(self, **columns):
        """A new table with the given columns replaced or added, each (R,) or Ragged."""
        own = {name: value for name, value in columns.items() if name in _NAMES}
        return replace(
            self,
            **own,
            columns={**self.columns, **{k: v for k, v in columns.items() if k not in own}},
        )

    def drop(self, names):
        """A new table without the further columns in `names`; those it does not have are passed over."""
        return replace(self, columns={k: v for k, v in self.columns.items() if k not in names})

    def groups(self):
        """Problem ids in order of first appearance (G,) and the group number of every row (R,) int64."""
        keys, first, inverse = np.unique(self.problem, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return keys[order], rank[inverse]

    def frame(self, text=True):
        """One row a rollout as a `pandas.DataFrame`: every scalar column and the response length, no tokens."""
        import pandas as pd

        left_out = set() if text else {"text", "answer"}
        data = {
            name: value
            for name, value in self.items()
            if name not in _RAGGED and name not in left_out
        }
        return pd.DataFrame({**data, "length": self.lengths})

    @classmethod
    def of_columns(cls, columns):
        """From a dict of all columns, own and further ones."""
        own = {name: value for name, value in columns.items() if name in _NAMES}
        return cls(
            **own, columns={name: value for name, value in columns.items() if name not in _NAMES}
        )

    @staticmethod
    def concat(parts):
        """The rows of all parts in order; every part must have the same columns."""
        parts = list(parts)
        if not parts:
            raise ValueError("parts=[]: at least one table is needed")
        names = [name for name, _ in parts[0].items()]
        for part in parts[1:]:
            if {name for name, _ in part.items()} != set(names):
                odd = sorted({name for name, _ in part.items()} ^ set(names))
                raise ValueError(f"parts differ in columns: {', '.join(odd)}")
        join = {n: Ragged.concat if n in _RAGGED else np.concatenate for n in names}
        return Rollouts.of_columns({n: join[n]([part[n] for part in parts]) for n in names})


_RAGGED = {"prompt": np.int32, "response": np.int32, "logprobs": np.float32}
_SCALARS = {
    "level": (np.int64, 0),
    "text": (object, ""),
    "answer": (object, ""),
    "truncated": (bool, False),
    "entropy": (np.float64, np.nan),
    "reward": (np.float64, np.nan),
    "correct": (bool, False),
    "status": (str, ""),
    "draw": (np.int64, 0),
    "stage": (np.int64, 0),
    "round": (np.int64, 0),
}
_NAMES = {"problem", *_RAGGED, *_SCALARS}


def _offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
