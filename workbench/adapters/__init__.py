"""The methods inside other people's trainers: what `workbench.trl`, `workbench.verl` and an adapter
of your own share.

A trainer samples and updates; a `Driver` does the rest of a round. It asks the method's slots by
`rounds.play`, lets them learn, and keeps what they have learnt beside the trainer's checkpoints:

    check_fits(method, "my trainer", provides={"epochs", "resampling"})
    driver = Driver(method.clone(), seed=0)
    for prompts in loader:
        driver.begin(max_new_tokens=512)
        outcome = driver.play(as_problems(prompts), sample, find_more)
        update(outcome.rollouts.take(outcome.rows), token_advantages(outcome, weights))
        log(round_metrics(driver.learn(), driver.round))

The guide "An adapter of your own" has a whole one.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from workbench.grpo import StepStats, mark
from workbench.methods import Method
from workbench.policies import Sampling
from workbench.pools import Problem
from workbench.records import checkpoints
from workbench.records.round_stats import round_stats
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import FindMore, Round, Sample, play
from workbench.rules import rewards
from workbench.slots import NEEDS
from workbench.utils.descriptions import describe, differences
from workbench.utils.groups import place_within
from workbench.utils.names import GRADED

logger = logging.getLogger(__name__)

FILE = "workbench.safetensors"  # what the slots have learnt, in the folder of a checkpoint

# What is logged of a round, see `records.round_stats`.
LOGGED = (
    "problems",
    "rollouts",
    "selected",
    "trained",
    "effective_gradient_ratio",
    "reward",
    "tokens_sampled",
    "length",
    "truncated",
    "correct",
    "all_positive",
    "all_negative",
    "unsolved",
)

# So many rounds from the start without anything to learn from are an error. Ten: with two problems
# a round, one in eight of which gives a mixed group, less than one run in ten begins like that.
MOST_EMPTY_ROUNDS = 10


# Before a model is loaded


def check_fits(
    method: Method,
    trainer: str,
    provides: Iterable[str],
    limits: Mapping[str, set[str]] | None = None,
) -> None:
    """Raise ValueError where a slot needs what a trainer, as it is configured, does not provide.

    Parameters
    ----------
    method : Method
    trainer : str
        Its name, for the message.
    provides : names from `slots.NEEDS`
    limits : dict, optional
        What of this the trainer does not provide as it is configured, under the setting that is the
        reason: {"with a KL penalty": {"row_weights"}}.
    """
    provided = set(provides)
    method.check_provided(provided, trainer)
    for setting, lost in (limits or {}).items():
        method.check_provided(provided - lost, f"{trainer} {setting}")


# From prompts to problems


def problem_id(prompt: Any) -> str:
    """The stable id of a prompt, under which its history is kept: 16 digits of its hash.

    Parameters
    ----------
    prompt : str or list of messages

    Raises
    ------
    ValueError
        For messages that hold anything but texts, numbers, lists and dicts.

    Examples
    --------
    >>> message = {"role": "user", "content": "1+1="}
    >>> problem_id([message]) == problem_id([dict(reversed(message.items()))])
    True
    >>> len(problem_id("1+1="))
    16
    """
    return hashlib.blake2b(_text(prompt).encode(), digest_size=8).hexdigest()


def as_problems(prompts: Iterable[Any], taken: Collection[str] = ()) -> list[Problem]:
    """Prompts as the problems of a round; one that occurs again is another problem, `id#2`.

    Parameters
    ----------
    prompts : texts or lists of messages
        For a problem without a prompt, anything else that identifies it, such as its row of a data
        set.
    taken : ids of the problems that the round has already
    """
    used = set(taken)
    problems = []
    for prompt in prompts:
        key = name = problem_id(prompt)
        number = 1
        while name in used:
            number += 1
            name = f"{key}#{number}"
        used.add(name)
        problems.append(Problem(name, _text(prompt), ""))
    return problems


def _text(prompt: Any) -> str:
    """A prompt as text: of messages their JSON, with the keys in a fixed order."""
    if isinstance(prompt, str):
        return prompt
    return json.dumps(prompt, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ValueError(
        f"prompt: a {type(value).__name__} has no stable id; prompts of text, numbers, lists and "
        "dicts have"
    )


# From samples to a table


def verdict_columns(verdict: np.ndarray) -> dict[str, Any]:
    """The columns of a table that say a verdict (R,): 1 is correct, 0 is wrong, NaN not known.

    Examples
    --------
    >>> table = Rollouts(np.array(["a", "a"]), **verdict_columns(np.array([1.0, np.nan])))
    >>> table.correct, table.judged
    (array([ True, False]), False)
    """
    return {"correct": verdict == 1, "status": np.where(np.isnan(verdict), GRADED, "")}


class Verdict:
    """Which rollouts are correct, where all that a trainer knows of them is their rewards.

    Rewards that are nothing but 0 and 1 say it by themselves.

    Parameters
    ----------
    needed : bool
        Whether the method must know it, see `Method.reads_verdict`. If not, it may stay unknown.
    advice : str
        How the user of the trainer says what is correct.
    solved : float, optional
        The reward from which a rollout counts as correct.

    Attributes
    ----------
    known : bool
        Whether rewards alone have said it so far.
    """

    def __init__(self, needed: bool, advice: str, solved: float | None = None) -> None:
        self.needed = needed
        self.advice = advice
        self.solved = solved
        self.known = True
        self.warned = False

    def of_rewards(self, reward: np.ndarray, first: bool) -> np.ndarray:
        """The verdict by rewards alone, (R,) float64: 1 is correct, 0 is wrong, NaN not known.

        Parameters
        ----------
        reward : (R,)
            NaN for a rollout that nothing scored.
        first : bool
            Whether nothing has been trained on yet. An error then costs little; later it is a
            warning, and 1 or more is correct.
        """
        if self.solved is not None:
            # In single precision, which trainers keep rewards in: 0.9 reaches a bar of 0.9.
            return (np.float32(reward) >= np.float32(self.solved)).astype(float)
        other = reward[~np.isnan(reward) & ~np.isin(reward, (0, 1))]
        # Once graded, always graded: a later round of nothing but 0 and 1 is a coincidence.
        self.known = self.known and (self.needed or not len(other))
        if not self.known:
            return np.full(len(reward), np.nan)
        if len(other):
            message = (
                f"a reward is {other[0]:g}, and only 0 and 1 say by themselves what is correct; "
                f"{self.advice}"
            )
            if first:
                raise ValueError(f"correct=None: {message}")
            if not self.warned:
                logger.warning("%s. Until then 1 or more is.", message)
            self.warned = True
        return (reward >= 1).astype(float)


# From a round to the trainer's loss


def row_weights(outcome: Round, loss_aggregation: str) -> np.ndarray:
    """What the loss of each selected row is multiplied with, (K,).

    These are the weights of the selector. With loss_aggregation="group", they also make a mean over
    rollouts a mean over groups of the means over their rollouts: of K rows in G groups, a row of a
    group of S rows has the factor K / (G S).
    """
    weights = np.ones(len(outcome.rows)) if outcome.weights is None else outcome.weights
    if loss_aggregation != "group":
        return weights
    groups = outcome.rollouts.group[outcome.rows]
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return weights * (len(groups) / (len(sizes) * sizes[group]))


def token_advantages(outcome: Round, weights: np.ndarray) -> Ragged:
    """The advantages of the selected rows times their weights (K,), one number a response token.

    A clipped objective grows in proportion to the advantage: a weight w >= 0 outside of
    min(r A, clip(r) A) is the same as one inside. So a trainer whose loss has no weights of rows
    takes advantages that hold them. A KL penalty and an entropy bonus are not reached that way.
    """
    rows = outcome.rollouts.response.take(outcome.rows)
    factors = np.repeat(weights, rows.lengths)
    if isinstance(outcome.advantages, Ragged):
        return Ragged(outcome.advantages.values * factors, rows.offsets)
    return Ragged(np.repeat(outcome.advantages, rows.lengths) * factors, rows.offsets)


# What is logged


def round_metrics(rollouts: Rollouts, number: int) -> dict[str, float]:
    """What is logged of round `number`, name to number; NaN where something is not known.

    Parameters
    ----------
    rollouts : Rollouts
        The round's table after `Driver.learn` or `Driver.table`.
    number : int
    """
    stages = rollouts.stage[rollouts.round == number]
    if not len(stages):
        # There is nothing new to take means of. Old responses may still have joined.
        return {"rollouts": 0, "selected": int(rollouts["selected"].sum()), "trained": 0}
    # Parameters and learning rate stay 0: the entries that depend on them are not asked for.
    row = round_stats(number, rollouts, [], 0, 0)
    return {**{name: row[name] for name in LOGGED}, "stages": int(stages.max()) + 1}


def with_prefix(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics under the prefix `workbench/`; those that are not finite are left out."""
    return {
        f"workbench/{name}": float(value) for name, value in metrics.items() if np.isfinite(value)
    }


# The rounds of a run


class Driver:
    """A method at work in somebody else's trainer.

    Parameters
    ----------
    method : Method
        It learns. `method.clone()` keeps what it learns in this trainer.
    seed : int
        Of everything that the method draws.

    Attributes
    ----------
    method : Method
    needs : set of str
        What the method needs of the trainer.
    round : int
        Rounds begun.
    context : Context
        Of the round at work.
    outcome : Round, optional
        The round at work, from `play` to `learn`.
    empty_rounds : int
        Rounds in a row, up to now, that nothing could be learnt from.
    """

    def __init__(self, method: Method, seed: int) -> None:
        self.method = method
        self.needs = method.needs
        self.seed = seed
        self.round = 0
        self.context = Context(seed)
        self.outcome: Round | None = None
        self.empty_rounds = 0
        self.warned = False  # of an empty round

    def begin(self, number: int | None = None, **options: Any) -> Context:
        """Begin a round, the next one or that of a number.

        Options: further fields of its context, such as epoch, policy, max_new_tokens, temperature.
        """
        self.round = self.round + 1 if number is None else number
        self.context = Context(self.seed, self.round, **options)
        return self.context

    def play(
        self, problems: Sequence[Problem], sample: Sample, more: FindMore, *timed: Any
    ) -> Round:
        """What the method decides in the round that `begin` began; arguments of `rounds.play`.

        Raises
        ------
        ValueError
            Where the selector returns what its `needs` do not name, so that nobody has checked
            whether the trainer provides it. Else see `rounds.play`.
        """
        outcome = play(self.method, problems, self.context, sample, more, *timed)
        used = {"row_weights": outcome.weights, "mini_batch": outcome.mini_batch}
        for need, value in used.items():
            if value is not None and need not in self.needs:
                raise ValueError(
                    f"selector: {type(self.method.selector).__name__} returned {NEEDS[need]}, and "
                    f"does not say so; add {need!r} to its `needs`"
                )
        self.outcome = outcome
        return outcome

    def score(
        self, rollouts: Rollouts, problems: Sequence[Problem], before: np.ndarray, stage: int
    ) -> Rollouts:
        """The rollouts of a request with their numbers, and the method's parts of the reward added.

        Parameters
        ----------
        rollouts : Rollouts
            With the trainer's own reward; the rollouts of a problem stand together.
        problems, before, stage
            As `rounds.play` hands them to `sample`.

        Raises
        ------
        ValueError
            Where a slot must know which rollouts are correct and nothing says so.
        NonFinite
            For a reward that is not finite.
        """
        self.method.check_verdict(rollouts)
        place = {problem.id: i for i, problem in enumerate(problems)}
        owner = np.array([place[name] for name in rollouts.problem], dtype=np.int64)
        size = len(rollouts)
        rollouts = rollouts.assign(
            draw=place_within(owner) + before[owner],
            stage=np.full(size, stage),
            round=np.full(size, self.round),
            # Replay sets these two otherwise for old rows.
            gradient=np.ones(size, bool),
            uses=np.zeros(size, np.int64),
        )
        limit = cast(int, self.context.max_new_tokens)  # `Sampling` refuses None
        sampling = Sampling(self.context.temperature, max_new_tokens=limit)
        return rewards.total(rollouts, self.method.reward, sampling)

    def table(self, steps: Sequence[tuple[np.ndarray, StepStats]] = ()) -> Rollouts:
        """The table of the round at work with what became of each rollout, see `grpo.mark`.

        Parameters
        ----------
        steps : list of (rows, StepStats)
            What the updates measured, where the trainer hands that back.
        """
        outcome = self.outcome
        assert outcome is not None
        return mark(
            outcome.rollouts, outcome.rows, outcome.advantages, steps, self.round, outcome.weights
        )

    def learn(self, steps: Sequence[tuple[np.ndarray, StepStats]] = ()) -> Rollouts:
        """End the round: the slots learn from its table, which is returned. Parameters: `table`."""
        rollouts = self.table(steps)
        self.method.feedback(rollouts, self.context)
        self.outcome = None
        return rollouts

    def check_not_empty(self, rollouts: Rollouts, advice: str) -> None:
        """Warn where nothing can be learnt from a round, by its table after `table` or `learn`.

        Raises
        ------
        RuntimeError
            When none of the first `MOST_EMPTY_ROUNDS` rounds had anything to train on.
        """
        if rollouts["trained"].any():
            self.empty_rounds = 0
            return
        self.empty_rounds += 1
        fresh = rollouts.take(rollouts.round == self.round)
        correct = f"{int(fresh.correct.sum())} of them correct, " if fresh.judged else ""
        selected = int(rollouts["selected"].sum())
        message = (
            f"Round {self.round} has nothing to train on: it has {len(fresh)} rollouts with a "
            f"reward, {correct}{selected} were selected, and none of these has an advantage other "
            f"than 0. {advice}"
        )
        # Only where no round before had anything. Later in a run, when something was learnt
        # already, a warning must do.
        if self.empty_rounds == self.round == MOST_EMPTY_ROUNDS:
            raise RuntimeError(f"{message} None of the rounds before had anything either.")
        if not self.warned:
            logger.warning(message)
        self.warned = True

    # What was learnt, beside the trainer's checkpoints

    def save(
        self, folder: str | Path, steps: Sequence[tuple[np.ndarray, StepStats]] = (), **numbers: int
    ) -> None:
        """Write what the method has learnt, and some numbers, into the folder of a checkpoint.

        Parameters
        ----------
        folder : path
        steps : see `table`
            What the updates of the round at work have measured so far, where there is one.
        numbers : int
            Numbers of the trainer, which `load` returns. A `step` is compared there.
        """
        method = self.method
        if self.outcome is not None:
            # Amid a round's updates a copy learns what they measured so far, since saving must
            # leave no trace in the run. `clone` would forget what the round itself left.
            method = copy.deepcopy(method)
            method.feedback(self.table(steps), self.context)
        tensors: dict[str, Any] = {}
        slots = checkpoints.split_slots(method, tensors)
        own = {"round": self.round, "empty_rounds": self.empty_rounds, "seed": self.seed}
        state = {**numbers, **own, "method": describe(method), "slots": slots}
        Path(folder).mkdir(parents=True, exist_ok=True)
        checkpoints.save(Path(folder) / FILE, tensors, state)

    def load(self, folder: str | Path, **expected: int) -> dict[str, Any]:
        """Set what `save` wrote, and return its numbers.

        Raises
        ------
        ValueError
            When the checkpoint is of another method or seed, or its numbers are not those expected.
        OSError
            When the file is missing or damaged.
        """
        path = Path(folder) / FILE
        tensors, state = checkpoints.load(path)
        slots = state.pop("slots")
        # Through JSON, as the saved one went: tuples become lists, for example.
        ours = {"method": json.loads(json.dumps(describe(self.method))), "seed": self.seed}
        for name, value in {**ours, **expected}.items():
            different = differences(value, state.get(name), name)
            if different:
                raise ValueError(
                    f"checkpoint: {path} has another {name} (this run's, the checkpoint's): "
                    f"{'; '.join(different[:3])}"
                )
        # Without what an interrupted round has left in slots.
        self.method = self.method.clone()
        checkpoints.join_slots(self.method, slots, tensors)
        self.round = state["round"]
        self.empty_rounds = state["empty_rounds"]
        self.outcome = None
        return state
