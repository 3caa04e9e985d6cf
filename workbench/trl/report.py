"""What is logged of a round, and the warning when it has nothing to train on."""

from __future__ import annotations

from accelerate.logging import get_logger

from workbench.records.round_stats import round_stats
from workbench.rollouts import Rollouts

logger = get_logger(__name__)

METRICS = (
    "problems",
    "selected",
    "trained",
    "effective_gradient_ratio",
    "reward",
    "tokens_sampled",
    "length",
    "truncated",
)
METRICS_OF_VERDICT = ("correct", "all_positive", "all_negative", "unsolved")

# So many rounds from the start without anything to learn from are an error. Ten: with two problems
# a round, one in eight of which gives a mixed group, less than one run in ten begins like that.
MOST_EMPTY_ROUNDS = 10


def round_metrics(
    number: int, rollouts: Rollouts, sampled: int, unscored: int, known: bool
) -> dict[str, float]:
    """What is logged of round `number`, name to number.

    Parameters
    ----------
    number : int
    rollouts : Rollouts
        The table after `grpo.marked`.
    sampled, unscored : int
        Rollouts sampled, and those of them that no reward function scored.
    known : bool
        Whether it is known which rollouts are correct.
    """
    counts = {"rollouts": sampled, "unscored": unscored}
    # Without a reward there is nothing to take means of. Old responses may still have joined.
    if sampled == unscored:
        return {**counts, "selected": int(rollouts["selected"].sum()), "trained": 0}
    # Parameters and learning rate stay 0: the entries that depend on them are not asked for.
    row = round_stats(number, rollouts, [], 0, 0)
    names = (*METRICS, *METRICS_OF_VERDICT) if known else METRICS
    return {**counts, **{name: row[name] for name in names}}


class EmptyRounds:
    """Counts rounds that nothing can be learnt from, and says so in TRL's own logging.

    Attributes
    ----------
    in_a_row : int
        Such rounds up to now, without one that was not.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.warned = False

    def check(self, number: int, rollouts: Rollouts, known: bool) -> None:
        """Count round `number`, whose table is marked. Warn at the first empty round.

        Raises
        ------
        RuntimeError
            When none of the first `MOST_EMPTY_ROUNDS` rounds had anything to train on.
        """
        if rollouts["trained"].any():
            self.in_a_row = 0
            return
        self.in_a_row += 1
        message = (
            f"Round {number} has nothing to train on, since none of the rollouts selected has an "
            f"advantage other than 0: {_description(rollouts, known)} Check the rewards, what "
            "counts as correct (correct=), and how hard the problems are."
        )
        # Equal to the number of the round only if no round before had anything. Later in a run,
        # when something was learnt already, a warning must do.
        if self.in_a_row == number == MOST_EMPTY_ROUNDS:
            raise RuntimeError(f"{message} None of the rounds before had anything either.")
        if self.in_a_row == MOST_EMPTY_ROUNDS:
            logger.warning(f"{message} This is round {MOST_EMPTY_ROUNDS} of that kind in a row.")
        elif not self.warned:
            logger.warning(message)
            self.warned = True


def _description(rollouts: Rollouts, known: bool) -> str:
    fresh = rollouts.take(rollouts["age"] == 0)
    if not len(fresh):
        return "no reward function scored any rollout, all of them gave None."
    selected = int(rollouts["selected"].sum())
    rewards = f"rewards from {fresh.reward.min():g} to {fresh.reward.max():g}"
    verdict = f"{int(fresh.correct.sum())} of them correct, " if known else ""
    return f"{len(fresh)} rollouts with {rewards}, {verdict}{selected} selected."
