"""The slots of a method: what each one decides, and what its value must offer.

A method is a choice of one value for each slot (see `workbench.methods.Method`). A round asks them
in this order:

    curriculum   which problems come next
    allocator    how many rollouts each problem gets; it sees outcomes and may ask again
    course       where each rollout starts, and when it stops
    reward       what a rollout earns: named parts that are summed
    replay       which responses of earlier rounds join
    selector     which rollouts are trained on, and with which weight
    advantage    how good each of them is
    objective    the loss (a plain configuration, see `workbench.objectives`)

The contracts are the `Protocol` classes below. A value of your own derives from `Slot`, which
supplies all further methods in the form that suits a value that learns nothing. Your value adds
the one method that its protocol names:

    from workbench.slots import Selection, Slot

    class Shortest(Slot):
        def __init__(self, m):
            self.m = m

        def select(self, rollouts, context):
            return Selection(np.argsort(rollouts.lengths, kind="stable")[: self.m])

A constructor keeps its arguments as attributes of the same names. A run clones the method it is
given and records it, and both read the arguments from there. The types that its signatures name,
such as `Rollouts` and `Context`, can be imported from here too.
"""

from __future__ import annotations

import copy
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, runtime_checkable

import numpy as np

from workbench.pools import Pool, Problem, Stream
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.utils.bounds import Count, check_arguments, choice
from workbench.utils.descriptions import clone, compose

if TYPE_CHECKING:
    from workbench.policies import Plan, Sampling

Problems = Sequence[Problem]

# What a slot value may need of the trainer that drives it. `Run` provides all of it; TRL and verl
# provide a part.
NEEDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("needs.toml").read_text("utf-8"))

# Those of them that only courses have.
COURSE_NEEDS = frozenset({"prefixes", "stopping", "growing_states"})

BASELINES = ("selection", "group", "mixed")
Baseline = Annotated[str, choice(*BASELINES)]


# The methods by which values of slots act.
ACTIONS = ("choose", "allocate", "plan", "join", "select", "__call__", "feedback")
# Attributes and methods that describe what an action does, see `Slot`. A subclass that overrides an
# action has to say them anew, because what it inherits describes the older one.
SAID_OF_ACTIONS = (
    "reads_verdict",
    "in_order",
    "sampled",
    "trained",
    "compares_rollouts",
    "part_weights",
)


@dataclass(frozen=True)
class PerProblem:
    """How many rollouts of each problem a round samples, or trains on.

    Attributes
    ----------
    n : int
        Rollouts of a problem, on average over the problems.
    of : {"each", "average", "about"}
        "each": every problem has exactly n. "average": problems differ, but a round of P problems
        has n P rollouts. "about": the number varies from round to round.
    """

    n: int
    of: str = "each"

    def limited(self, n: int) -> PerProblem:
        """What is left where a rule keeps n rollouts of every problem that has so many."""
        n = min(n, self.n)
        # Where problems differ, some may have fewer than n, so the number is no longer certain.
        return PerProblem(n, "each" if self.of == "each" else "about")


def state_field(make: Callable[[], Any] = lambda: None, saved: bool = True) -> Any:
    """A field of a dataclass for what a value has learnt, made anew for each by `make`.

    It is no argument of the constructor, so it is neither described in a manifest nor cloned. What
    is `saved` goes into checkpoints, see `Slot.state_dict`; the rest is of a single round.
    """
    metadata = {"saved": saved}
    return field(default_factory=make, init=False, repr=False, compare=False, metadata=metadata)


class Slot:
    """Base class of every slot value, with the defaults of a value that learns nothing.

    The attributes tell a trainer what it must know of a value before it uses it. Each may be a
    class attribute or a property. `needs_of` returns the needs of a value together with those of
    the value that it delegates to.

    What a class says of its actions, in `reads_verdict` and the like, holds for these actions. So a
    subclass that overrides one of them (`select`, `feedback` and so on) does not inherit what its
    base class says: it says so itself, or the defaults below hold.

    Attributes
    ----------
    needs : set of str
        Names from `NEEDS`: what a trainer must provide for this value to work.
    epoch : int
        Of a curriculum: the pass over the pool in which its latest round begins, from 0; always 0
        where that has no meaning.
    reads_verdict : bool
        Whether it must know which rollouts are correct. A trainer that knows rewards alone must
        then be told. A value that asks only whether the rollouts of a problem are all alike says
        False: it reads `rollouts.correct` where `rollouts.judged`, and the rewards otherwise.
    later : tuple of str
        Arguments that a later version added to the constructor. A description leaves them out where
        they have their defaults, so that it equals the one in a record of an earlier version.
    in_order : bool
        Of a curriculum: whether it takes every problem once an epoch, shuffled, as the data loader
        of any trainer does by itself.
    compares_rollouts : bool
        Of an advantage: whether it compares rollouts with those that it is given of the same group,
        so that a rollout alone has no advantage.
    part_weights : dict, optional
        Of an advantage that weighs the parts of the reward itself: part -> weight, which must be
        those of the method's reward. None: it takes their sum.
    """

    needs: frozenset[str] | set[str] = frozenset()
    epoch: int = 0
    reads_verdict: bool = True
    later: tuple[str, ...] = ()
    in_order: bool = False
    compares_rollouts: bool = False
    part_weights: Mapping[str, float] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if any(action in vars(cls) for action in ACTIONS):
            for name in SAID_OF_ACTIONS:
                if name not in vars(cls):
                    setattr(cls, name, vars(Slot)[name])

    def __post_init__(self) -> None:
        # What a dataclass calls at the end of its constructor. One with further checks calls this
        # first; a class with a constructor of its own checks what it likes.
        check_arguments(self)

    def __repr__(self) -> str:
        # Of classes that are no dataclasses, which have their own.
        try:
            return compose(self)
        except ValueError:
            # Not all of its arguments are kept, or not yet.
            return f"{type(self).__name__}(...)"

    @property
    def delegate(self) -> Slot | None:
        """Another slot value that this one holds and asks, such as an allocator's success rates.

        By default this value learns what that one learns, and stores and measures the same.
        """
        return None

    def sampled(self) -> PerProblem | None:
        """Of an allocator: how many rollouts of a problem it asks for. None: not known before."""
        return None

    def trained(self, sampled: PerProblem) -> PerProblem:
        """Of a selector: how many rollouts of a problem are trained on, of those sampled."""
        return PerProblem(sampled.n, "about")

    def warm_up_of(self, planned: int | None) -> int:
        """Rounds after which it begins to decide, in a run of so many rounds."""
        return 0

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Learn from a finished round: all its rollouts, with what became of each.

        The columns that say so are those of `grpo.mark`.
        """
        if self.delegate is not None:
            self.delegate.feedback(rollouts, context)

    def metrics(self) -> dict[str, float]:
        """What was measured in the round just finished, as columns of the record."""
        return {} if self.delegate is None else self.delegate.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt so far, for a checkpoint.

        It may hold numbers, texts, arrays of NumPy and torch, and lists, tuples, sets and dicts of
        them, all of which come back equal. By default these are the fields made by `state_field`,
        and under "delegate" what the value that this one delegates to has learnt. A field that has
        a `state_dict` of its own, as another slot value has, is stored by it.
        """
        state = {}
        for name in self._saved():
            value = getattr(self, name)
            if hasattr(value, "state_dict"):
                self._check_template(name, value)
                state[name] = value.state_dict()
            elif isinstance(value, dict) and type(value) not in (dict, Counter):
                self._check_template(name, value)
                state[name] = copy.deepcopy(dict(value))
            else:
                state[name] = copy.deepcopy(value)
        if self.delegate is not None:
            state["delegate"] = self.delegate.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned for a value of the same configuration."""
        if self.delegate is not None:
            self.delegate.load_state_dict(state["delegate"])
        for name in self._saved():
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            elif isinstance(value, dict) and type(value) is not type(state[name]):
                # Such as one with a value for missing keys.
                value.clear()
                value.update(state[name])
            else:
                setattr(self, name, state[name])

    def _saved(self) -> list[str]:
        """Names of the fields that a checkpoint holds."""
        if not is_dataclass(self):
            return []
        names = [each.name for each in fields(self) if each.metadata.get("saved")]
        delegate = self.delegate
        return [name for name in names if delegate is None or getattr(self, name) is not delegate]

    def _check_template(self, name: str, value: Any) -> None:
        """ValueError where a new value has nothing that the state of `value` could be set in."""
        if type(getattr(self.clone(), name)) is not type(value):
            raise ValueError(
                f"{type(self).__name__}.{name}: a {type(value).__name__} can be stored only where "
                "the field begins as one; make it in state_field(...) or in __post_init__"
            )

    def clone(self) -> Self:
        """A new value of the same configuration that has learnt nothing."""
        # A new call of the constructor: a copy would also hold what was learnt.
        return clone(self)


def needs_of(value: Slot) -> set[str]:
    """What a value and the values that it delegates to need of a trainer, names from `NEEDS`."""
    inner = value.delegate
    return set(value.needs) | (set() if inner is None else needs_of(inner))


@dataclass(frozen=True)
class More:
    """An allocator's request for n further problems in this round."""

    n: Count

    def __post_init__(self) -> None:
        check_arguments(self)


@dataclass(frozen=True)
class Selection:
    """What a selector keeps of the C candidates of a round.

    Attributes
    ----------
    rows : (K,) int64
        Positions of the kept candidates, in any order, without repeats. A mask (C,) of bool is
        taken as well.
    weights : (K,) float64, optional
        What each kept rollout's loss is multiplied with; at least 0. The averages of the loss count
        rollouts as before. None: 1 each. A selector that sets them names "row_weights" in `needs`,
        so that a trainer without them can refuse it, and likewise "mini_batch".
    columns : dict
        What the selector knows of every candidate, name to (C,) numbers; it is recorded.
    mini_batch : int, optional
        Rollouts of one optimizer step. None: the run decides.
    baseline : {"group", "selection", "mixed"}
        What advantages are measured against: all candidates of a rollout's group; the kept ones
        alone (PODS, section 3.2); or the kept ones, but all candidates where the rewards of the
        group are all equal (AERO, section 4.2).
    """

    # A selection is checked in `checks.checked_selection`, where the candidates are known.
    rows: np.ndarray
    weights: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    mini_batch: int | None = None
    baseline: str = "group"


# The contracts. `Method` checks that a value has the one method of its protocol, and that it
# derives from `Slot`, so that the driver may call `feedback`, `metrics` and the rest without asking
# first. A part of the reward needs no base class, since it learns nothing.
class Curriculum(Protocol):
    """Which problems come next."""

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The next n problems of the pool, none of them in `context.taken`.

        Called once at the start of a round, and again, with `context.taken` filled, whenever the
        allocator asks for `More`. Then it may return fewer, where the pool has no more.
        """


class Allocator(Protocol):
    """How many rollouts for which problem."""

    def allocate(
        self, problems: Problems, context: Context
    ) -> Generator[np.ndarray | More, Any, np.ndarray | None]:
        """A generator that asks for rollouts and sees what came of them.

            rollouts = yield counts
            problems = yield More(n)
            return rows

        `counts` (P,) int64 asks for so many more rollouts of each problem. What comes back is all
        rollouts of the round so far, a verified `Rollouts` table in the order of sampling.

        `More(n)` asks for n further problems. What comes back is the list of all problems of the
        round, with the new ones at its end, or as it was when there are none left.

        `rows` are the rows of the table that go on to the selector. None, as without a return,
        means all of them. Without any row the round trains on nothing.
        """


class Course(Protocol):
    """Where a rollout starts, and when it stops."""

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan | None:
        """The plan of one request: counts[i] rollouts of problems[i], which had before[i] so far.

        None: every rollout starts at its problem and ends by itself. What a plan's function `stop`
        remembers from token to token belongs in that function, made anew for each request.
        Randomness comes from `context.rng("course", problem.id)`, before[i] and the like, and never
        from how many rollouts there are of other problems.
        """


class Replay(Protocol):
    """Which responses of earlier rounds join."""

    def join(
        self, rollouts: Rollouts, candidates: np.ndarray, context: Context
    ) -> tuple[Rollouts, np.ndarray]:
        """The table with old rows appended, and the rows (C,) int64 to select from.

        Rows whose column `gradient` is False take part in advantages and in the averages of the
        loss, but carry no gradient themselves.
        """


class Selector(Protocol):
    """Which rollouts are trained on, and with which weight."""

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """Choose among the round's candidates.

        Besides the columns of every table, `rollouts` has `advantage` (against the whole group) and
        `age` (rounds since it was sampled, 0 for a new one). Randomness comes from
        `context.rng("selector")`.
        """


class Advantage(Protocol):
    """How good a rollout is, against the others of its group."""

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray | Ragged:
        """One number for each rollout, (R,) float64, or one for each token in a `Ragged`.

        Called more than once in a round, with the candidates and perhaps with a part of them, so it
        must not change anything; what it learns it learns in `feedback`.
        """


@runtime_checkable
class Reward(Protocol):
    """One part of what a rollout earns.

    Parts are summed with their weights and recorded as `reward_<name>`.
    """

    name: str
    weight: float

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """One number for each rollout, (R,)."""
