"""Is the training sick? Pure functions of a run's rows: what is wrong, in one line with its numbers, or None.

Every check reads the last rows of the rounds table (a list of dicts, oldest first) and nothing else, so a resumed run
says the same at the same round. `symptoms` says each cause once a run: what was said stands in the rows' column
`warnings`. What is not finite needs no check here: a reward, loss or gradient that is not stops its round at once
(`grpo.NonFinite`).
"""

import numpy as np

FAILURES = ("timeout", "crash")


class TrainingWarning(UserWarning):
    """A run goes on, but its training looks sick."""


def symptoms(rows):
    """What is wrong as of the last row and was not said in an earlier one: a list of texts "cause: numbers"."""
    said = {cause for row in rows[:-1] for cause in _causes(row)}
    found = {
        check.__name__.replace("_", " "): check(rows)
        for check in (nothing_learnt, entropy_collapse, verifier_failures)
    }
    return [
        f"{cause}: {text}"
        for cause, text in found.items()
        if text is not None and cause not in said
    ]


def nothing_learnt(rows, rounds=10):
    """No rollout had an advantage in each of the last `rounds` rounds: no reward was learnt from, and why.

    Ten: where even one problem in eight gives a mixed group, ten rounds of two problems without one are rarer than one
    in ten, of 32 problems rarer than 1e-18; so of a usual round size it is no bad luck.
    """
    last = rows[-rounds:]
    if len(last) < rounds or any(row["trained"] for row in last):
        return None
    right, wrong = (
        float(np.mean([row[name] for row in last])) for name in ("all_positive", "all_negative")
    )
    mixed = max(
        0.0, round(1 - right - wrong, 9)
    )  # shares are fractions: what is left of 1 may be a rounding error
    shares = f"groups all right {right:.0%}, all wrong {wrong:.0%}, mixed {mixed:.0%}"
    since = f"rounds {last[0]['round']} to {last[-1]['round']}"
    return f"every advantage was 0 in {since} ({shares}): {_why(last, right, wrong, mixed)}"


def entropy_collapse(rows, window=10, share=0.1, least=0.1):
    """The policy's mean entropy fell below `share` of where it began, and below `least` nats: it hardly explores.

    Means over the first and the last `window` rounds, against the noise of single rounds. A tenth: healthy runs of the
    tiny lab keep two thirds of theirs over 200 rounds. 0.1 nats: below it CBS no longer charges entropy (table 4, GRPO);
    a policy that began lower, as after supervised training on short answers, may have its place there.
    """
    if len(rows) < 2 * window:
        return None
    first, last = rows[:window], rows[-window:]
    before, now = (float(np.mean([row["entropy"] for row in part])) for part in (first, last))
    if not (now < share * before and now < least):
        return None
    rewards = (float(np.mean([row["reward"] for row in part])) for part in (first, last))
    return (
        f"mean entropy fell from {before:.3g} to {now:.3g} nats (first and last {window} rounds; reward "
        + " to ".join(f"{reward:.3f}" for reward in rewards)
        + "): responses to a problem are nearly all alike"
    )


def verifier_failures(rows, window=10, share=0.05, least=5):
    """More than `share` of the last rounds' rollouts, and at least `least`, were never judged (timeout or crash).

    Each of them counts as wrong. 5%: the methods differ from their baselines by as little; fewer than five may be the
    same odd answer drawn by one group.
    """
    last = rows[-window:]
    counts = {name: sum(row[f"status_{name}"] for row in last) for name in FAILURES}
    failed, rollouts = sum(counts.values()), sum(row["rollouts"] for row in last)
    if failed < least or failed <= share * rollouts:
        return None
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    return (
        f"{failed / rollouts:.0%} of the {rollouts} rollouts of rounds {last[0]['round']} to {last[-1]['round']} were not "
        f"judged ({shown}) and count as wrong: see the responses with these statuses, and the verifier's limits"
    )


def _why(last, right, wrong, mixed):
    """The likely reason for groups without advantages."""
    if mixed > 0 and not any(row["selected"] for row in last):
        return "no rollout was selected for training"
    if mixed > 0:
        return "the selector or the allocator kept uniform groups only, or right and wrong earn the same reward"
    if min(right, wrong) > 0.25:
        return "the problems are either too easy or too hard for this policy"
    if right > wrong:
        return "the problems are too easy for this policy, or the verifier accepts anything"
    seen = sum(row["rollouts"] for row in last)
    unread = sum(row["status_unparsed"] for row in last) / seen
    cut = sum(row["truncated"] * row["rollouts"] for row in last) / seen
    return (
        "the problems are too hard for this policy, or no answer can be read "
        f"({unread:.0%} of responses unparsed, {cut:.0%} truncated)"
    )


def _causes(row):
    """Causes named in a row's column `warnings`, which records of earlier versions do not have."""
    return [text.partition(":")[0] for text in (row.get("warnings") or "").splitlines()]
