"""What a method's slots do in one round, whoever samples and whoever updates: `Run`, or another library's trainer."""

from contextlib import nullcontext

import numpy as np

from workbench.advantages import selected_advantages
from workbench.allocators import More
from workbench.rollouts import Rollouts

REQUESTS = 1000  # an allocator that asks more often than this in one round never ends


def collect(allocator, problems, context, sample, more, watched=nullcontext):
    """Drives the allocator: all rollouts of the round (R rows), and the rows that go on to the selector, (K,) int64.

    problems: list of those the round starts with. sample(problems, counts, before, stage) -> scored `Rollouts`: so many
    more of each problem, counts (P,) int64, which had `before` (P,) so far. more(n, problems) -> list of n other
    problems, shorter or empty when there are not so many. watched: makes a context manager around the allocator's own
    work. ValueError for counts that are none, for no rollouts at all, and for an allocator that never ends.
    """
    plan = allocator.allocate(problems, context)
    with watched():
        request, keep = _advance(plan, None)
    parts, stage = [], 0
    for _ in range(REQUESTS):
        if request is None:
            break
        if isinstance(request, More):
            answer = problems = [*problems, *more(request.n, problems)]
        else:
            counts = _checked(request, problems)
            parts.append(sample(problems, counts, _counts_so_far(problems, parts), stage))
            answer, stage = Rollouts.concat(parts), stage + 1
        with watched():
            request, keep = _advance(plan, answer)
    else:
        raise ValueError(
            f"allocator: {allocator!r} asked {REQUESTS} times in one round without ending"
        )
    if not parts or not sum(map(len, parts)):
        raise ValueError(f"allocator: {allocator!r} asked for no rollouts")
    rollouts = Rollouts.concat(parts)
    return rollouts, np.arange(len(rollouts)) if keep is None else np.asarray(keep, dtype=np.int64)


def join_and_select(method, rollouts, candidates, context, max_length):
    """Old responses join, the selector chooses: (the round's table, rows trained on (K,), their advantages (K,), seen).

    candidates (C,) int64: rows of `rollouts` that went past the allocator. max_length: the sampling limit in tokens.
    seen: what the selector adds to the table, name -> (R,), NaN for rows that were no candidates.
    """
    if method.reuse is not None:
        rollouts, candidates = method.reuse.join(rollouts, candidates, context)
    everything = np.array_equal(candidates, np.arange(len(rollouts)))  # then nothing need be copied
    selector, pool = method.selector, rollouts if everything else rollouts.take(candidates)
    if not len(pool):
        return rollouts, candidates, np.empty(0), {}
    if selector.statistics == "pool":
        pool = pool.assign(
            advantage=method.advantage(pool.reward, pool.group),
            age=context.round - pool.round,
            max_length=np.full(len(pool), max_length),
        )
    index = np.asarray(selector(pool, context.rng("selector")), dtype=np.int64)
    advantages = selected_advantages(method.advantage, selector.statistics, pool, index)
    seen = selector.columns() if hasattr(selector, "columns") else {}
    return (
        rollouts,
        candidates[index],
        advantages,
        {n: _spread(v, candidates, len(rollouts)) for n, v in seen.items()},
    )


def _advance(plan, answer):
    """The allocator's next request and, when it ends, (None, the rows it keeps)."""
    try:
        return plan.send(answer), None
    except StopIteration as end:
        return None, end.value


def _checked(counts, problems):
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != (len(problems),) or (counts < 0).any():
        raise ValueError(
            f"allocator: counts {counts.tolist()} are not {len(problems)} numbers of at least 0"
        )
    return counts


def _counts_so_far(problems, parts):
    place = {p.id: i for i, p in enumerate(problems)}
    before = np.zeros(len(problems), dtype=np.int64)
    for part in parts:
        ids, counts = np.unique(part.problem, return_counts=True)
        before[[place[i] for i in ids]] += counts
    return before


def _spread(values, rows, size):
    """Values of the given rows in a column of `size` rows, NaN elsewhere."""
    column = np.full(size, np.nan)
    column[rows] = values
    return column
