"""Warnings about training that has gone wrong.

Each check is a pure function of the first and the last rows of the table of rounds (a list of
dicts, the oldest first). It returns a line of text with the numbers, or None when nothing is wrong.
Because nothing else is read, a resumed run says the same at the same round as one that was never
interrupted.

`History` runs all checks and reports each cause once in a run; what was reported stands in the
column `warnings` of the rows. Numbers that are not finite need no check here: a reward, advantage,
loss or gradient that is not finite stops its round at once (see `rollouts.NonFinite`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]

# The statuses of responses that no verifier judged.
FAILURES = ("timeout", "crash")
WINDOW = 10  # rounds that a check looks at, the first or the last ones of the run
# Groups of one kind above this share are named as a cause of nothing being learnt.
LARGE_SHARE = 0.25


class TrainingWarning(UserWarning):
    """A run goes on, but something about its training looks wrong."""


class History:
    """As much of a run's rounds as the next one needs, so that no earlier row is read again.

    Parameters
    ----------
    rows : list of dict
        All rounds so far, the oldest first.

    Attributes
    ----------
    rounds : int
        How many there are.
    steps : int
        Optimizer steps of all of them.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rounds = 0
        self.steps = 0
        self._rows: list[Row] = []
        self._reported: set[str] = set()
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take note of a round, whose column `warnings` holds what was reported of it."""
        self.rounds += 1
        self.steps += int(row["steps"])
        # A copy, since the caller of the loop may change the row that it is given.
        self._rows = _ends([*self._rows, dict(row)])
        reported = (row.get("warnings") or "").splitlines()
        self._reported.update(line.partition(":")[0] for line in reported)

    def symptoms(self, row: Row) -> list[str]:
        """What is wrong as of a new round and was not reported in an earlier one.

        Returns
        -------
        list of str
            "cause: numbers" for each cause.
        """
        rows = _ends([*self._rows, row])
        texts = []
        for check in (policy_destroyed, nothing_learnt, entropy_collapse, verifier_failures):
            cause = check.__name__.replace("_", " ")
            # What was reported is read from the rows, so a resumed run keeps silent about what the
            # run before it has said.
            text = None if cause in self._reported else check(rows)
            if text is not None:
                texts.append(f"{cause}: {text}")
        return texts


def policy_destroyed(rows: Sequence[Row], rounds: int = 3, share: float = 0.1) -> str | None:
    """The policy answered a part of the problems in the first round, and none in the last ones.

    A learning rate that is far too high does this within a few steps, and nothing else usually
    does. Loss and gradient stay finite: where all responses are wrong, both are 0.

    Parameters
    ----------
    rows : list of dict
    rounds : int
        Rounds in which hardly a response was right, at most 1 %.
    share : float
        Report only policies that had at least this share of right responses in the first round,
        which the policy of before the training has sampled.
    """
    first, last = rows[0], rows[-rounds:]
    # NaN where nothing says what is correct, which is no more than any share.
    if len(rows) <= rounds or not first["correct"] >= share:
        return None
    now = _mean(last, "correct")
    sampled = sum(row["rollouts"] for row in last)
    # By bad luck so few of so many would have a probability below (1 - share)^sampled.
    if not now <= 0.01 or sampled * first["correct"] < 20:
        return None
    return (
        f"accuracy fell from {first['correct']:.0%} in round {first['round']} to {now:.0%} in "
        f"{_span(last)} (mean entropy {first['entropy']:.3g} to {_mean(last, 'entropy'):.3g} nats, "
        f"gradient norm {first['gradient_norm']:.3g} to {last[-1]['gradient_norm']:.3g}): the "
        "updates have destroyed the policy; begin again with a lower learning rate than "
        f"{last[-1]['learning_rate']:g}"
    )


def nothing_learnt(rows: Sequence[Row], rounds: int = WINDOW) -> str | None:
    """No rollout had an advantage other than zero in any of the last `rounds` rounds.

    The text says why. Bad luck looks different: suppose that only one problem in eight gets a group
    with both right and wrong answers. Ten rounds of 32 problems without a single such group then
    have a probability of (7/8)^320, below 1e-18. With two problems a round it is (7/8)^20, or 7 %.

    Parameters
    ----------
    rows : list of dict
    rounds : int
        Fewer rows than this are never reported.
    """
    last = rows[-rounds:]
    if len(last) < rounds or any(row["trained"] for row in last) or policy_destroyed(rows):
        return None
    found = f"every advantage was 0 in {_span(last)}"
    all_right, all_wrong = _mean(last, "all_positive"), _mean(last, "all_negative")
    if np.isnan(all_right):
        return f"{found}: the rewards of each problem are all alike, or none of them was selected"
    # The shares are fractions, so what is left of 1 may be a rounding error.
    mixed = max(0.0, round(1 - all_right - all_wrong, 9))
    return (
        f"{found} (groups all right {all_right:.0%}, all wrong {all_wrong:.0%}, mixed "
        f"{mixed:.0%}): {_likely_reason(last, all_right, all_wrong, mixed)}"
    )


def entropy_collapse(
    rows: Sequence[Row], window: int = WINDOW, share: float = 0.1, least: float = 0.1
) -> str | None:
    """The policy's entropy fell to a small part of its first value: it hardly explores any more.

    Parameters
    ----------
    rows : list of dict
    window : int
        The means over the first and over the last `window` rounds are compared, since single rounds
        are noisy. With fewer than two windows of rows nothing is reported.
    share : float
        Report entropies below this share of the first ones. Healthy runs of the tiny lab keep two
        thirds of theirs over 200 rounds, so a tenth leaves a wide margin.
    least : float
        And only entropies below this, in nats: a policy may well go from 5 nats to 0.4 and still
        explore. 0.1 nats is where CBS stops to charge entropy growth (arXiv 2602.08499, table 4,
        GRPO). A policy that began below it, as after supervised training on short answers, is left
        alone.
    """
    if len(rows) < 2 * window:
        return None
    first, last = rows[:window], rows[-window:]
    before, now = _mean(first, "entropy"), _mean(last, "entropy")
    # Written so that a policy that does not know its entropy (NaN) is not reported.
    if not (now < share * before and now < least):
        return None
    return (
        f"mean entropy fell from {before:.3g} to {now:.3g} nats (first and last {window} rounds; "
        f"reward {_mean(first, 'reward'):.3f} to {_mean(last, 'reward'):.3f}): responses to a "
        "problem are nearly all alike"
    )


def verifier_failures(
    rows: Sequence[Row], window: int = WINDOW, share: float = 0.05, least: int = 5
) -> str | None:
    """Too many of the last rollouts were never judged, because their check timed out or crashed.

    Each of them earns nothing, as a wrong answer does.

    Parameters
    ----------
    rows : list of dict
    window : int
        Rounds that are looked at; fewer at the beginning of a run.
    share : float
        Report more than this share of the rollouts. Methods differ from their baselines by about
        5 %, so more failures than that could decide a comparison.
    least : int
        And at least this many of them: fewer may be one odd answer that a group repeated.
    """
    last = rows[-window:]
    counts = {name: sum(row[f"status_{name}"] for row in last) for name in FAILURES}
    failed = sum(counts.values())
    rollouts = sum(row["rollouts"] for row in last)
    # Both bars have to be passed: a share alone would report a single failure of a small round.
    if failed < least or failed <= share * rollouts:
        return None
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    return (
        f"{failed / rollouts:.0%} of the {rollouts} rollouts of {_span(last)} were not judged "
        f"({kinds}) and count as wrong: look at the responses with these statuses, and at the "
        "verifier's limits"
    )


def _likely_reason(last: Sequence[Row], all_right: float, all_wrong: float, mixed: float) -> str:
    """Why no rollout had an advantage."""
    # Where there were mixed groups, the problems are not the cause, so what the slots made of these
    # groups is named.
    if mixed > 0 and not any(row["selected"] for row in last):
        return "no rollout was selected for training"
    if mixed > 0:
        return (
            "the selector or the allocator kept uniform groups only, or right and wrong answers "
            "earn the same reward"
        )
    if min(all_right, all_wrong) > LARGE_SHARE:
        return "the problems are either too easy or too hard for this policy"
    if all_right > all_wrong:
        return "the problems are too easy for this policy, or the verifier accepts anything"
    rollouts = sum(row["rollouts"] for row in last)
    unparsed = sum(row["status_unparsed"] for row in last) / rollouts
    truncated = sum(row["truncated"] * row["rollouts"] for row in last) / rollouts
    return (
        "the problems are too hard for this policy, or no answer can be read "
        f"({unparsed:.0%} of responses unparsed, {truncated:.0%} truncated)"
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _span(rows: Sequence[Row]) -> str:
    return f"rounds {rows[0]['round']} to {rows[-1]['round']}"


def _ends(rows: list[Row]) -> list[Row]:
    """The first and the last rows: as many of both as the checks look at."""
    return rows if len(rows) <= 2 * WINDOW else [*rows[:WINDOW], *rows[-WINDOW:]]
