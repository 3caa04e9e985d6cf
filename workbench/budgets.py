"""Budget arithmetic: what a rollout is worth, the best split of a total over problems, and its spread over workers.

Pure functions of success rates in [0, 1] (Knapsack RL, sections 3-4, appendices C and E). NaN is the one way to say
"never tried": values of it are NaN, and `knapsack` gives such a problem the uniform budget.

`knapsack` is exact: gains fall with every further rollout, so the best rollouts are those whose gain lies above one
threshold. The threshold is bisected and only the candidates near it are sorted, in memory linear in P.
The dynamic program released with the paper takes a problem's bare minimum to be worth 0, and so misses the optimum of
eq. 6 on many small instances.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from workbench.utils.columns import whole_number as whole

ESTIMATORS = ("grpo", "rloo", "remax", "reinforce")
CANDIDATES = 2**12  # rollouts sorted at the end, or P where that is more
NEVER = -1e30  # logarithm of zero, finite so that zero rollouts times it is zero


def nonzero_gradient_probability(n, p, estimator="grpo"):
    """Probability that n rollouts at success rate p give a gradient that is not zero; n and p broadcast.

    grpo, rloo: 1 - p^n - (1-p)^n, some right and some wrong (0 for n=0). remax: 1 - p^n, where p is the rate of the
    greedy response. reinforce: 1 - (1-p)^n, some right. Knapsack RL, section 3 and appendix E.
    """
    n, p = _whole_numbers(n), _rates(p)
    _choice("estimator", estimator, ESTIMATORS)
    if estimator in ("remax", "reinforce"):
        return -np.expm1(n * _log_of_miss(p, estimator))
    rare = np.minimum(p, 1 - p)
    mixed = -np.expm1(n * np.log1p(-rare)) - rare**n
    return np.where(n > 1, mixed, 0 * p)[()]


def info_gain(p):
    """Expected rise of the success rate by one update, to first order: p (1-p)^2 (Knapsack RL, proposition 2)."""
    p = _rates(p)
    return p * (1 - p) ** 2


def value(n, p, info_gain=True, estimator="grpo"):
    """Worth of n rollouts at success rate p: probability of a gradient times `info_gain(p)`, or the former alone."""
    weight = _info_gain(p) if info_gain else 1.0
    return nonzero_gradient_probability(n, p, estimator) * weight


_info_gain = info_gain


def expected_rollouts(p):
    """Mean number of rollouts until both outcomes were seen: 1/p + 1/(1-p) - 1, infinite at 0 and 1."""
    p = _rates(p)
    with np.errstate(divide="ignore"):
        return 1 / p + 1 / (1 - p) - 1


def required_rollouts(p, alpha=0.9):
    """Rollouts for a gradient with probability about alpha: ln(1-alpha) / ln(max(p, 1-p)), not rounded.

    Infinite at 0 and 1. The formula leaves out the rarer outcome's power, so near p=0.5 it is up to one rollout short
    (Knapsack RL, proposition 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: a probability above 0 and below 1 is needed")
    p = _rates(p)
    with np.errstate(divide="ignore"):
        return -np.log1p(-alpha) / -np.log1p(-np.minimum(p, 1 - p))


def knapsack(p, total, *, low=2, up=128, info_gain=True, fallback=True, estimator="grpo"):
    """Counts (P,) int64 of greatest summed `value`, low <= count <= up, that sum to total exactly.

    p (P,): success rates, NaN for problems never tried. Equal gains go to the lower index.
    Never tried: total // P each. Then everyone has `low`, and what is left goes, each taking what it can hold, to
      1. with fallback, the p=0 problems in equal parts: only the surplus over what the 0<p<1 problems need for a
         gradient with probability 0.9, floor(min(up, ln 0.1 / ln max(p, 1-p))) each beyond `low`;
      2. the 0<p<1 problems, by greatest gain;
      3. the p=0 problems, then the never tried, then the p=1 problems, in equal parts.
    low may be 0 for remax and reinforce; for grpo and rloo it is at least 1, because one rollout alone has no value.
    """
    p = _rates(p)
    check_budget(p.size, total, low, up, estimator)
    if p.ndim != 1:
        raise ValueError(f"p: shape {p.shape}; (P,) is needed")
    new, failed, solved = np.isnan(p), p == 0, p == 1
    counts = np.where(new, total // p.size, low).astype(np.int64)
    if fallback:
        _share(counts, failed, max(total - counts.sum() - _needs(p, up, estimator), 0), up)
    limit = np.where((p > 0) & (p < 1), up, counts)
    if (
        low == 0 and not info_gain
    ):  # the first rollout of a certain outcome is worth 1, the next nothing
        limit[(failed if estimator == "remax" else solved) & (counts == 0)] = 1
    _by_gain(counts, limit, p, total - counts.sum(), estimator, info_gain)
    for group in (failed, new, solved):
        _share(counts, group, total - counts.sum(), up)
    return counts


def check_budget(problems, total, low, up, estimator="grpo"):
    """ValueError unless `total` rollouts can be split over so many problems with low <= count <= up."""
    _choice("estimator", estimator, ESTIMATORS)
    least = 0 if estimator in ("remax", "reinforce") else 1
    for name, number, lowest in (("low", low, least), ("up", up, 1), ("total", total, 0)):
        whole(name, number, lowest)
    if low > up:
        raise ValueError(f"low={low}, up={up}: low must not be above up")
    if problems < 1:
        raise ValueError("p: empty; at least one problem is needed")
    if not problems * low <= total <= problems * up:
        allowed = f"{problems * low} (low={low} each) to {problems * up} (up={up} each)"
        raise ValueError(f"total={total}: {problems} problems can take {allowed}")


# how the pieces of `knapsack` are shared out


def _needs(p, up, estimator):
    """Rollouts that the 0<p<1 problems ask for in all."""
    p = p[(p > 0) & (p < 1)]
    if estimator in ("remax", "reinforce"):
        log_miss = _log_of_miss(p, estimator)
    else:
        log_miss = np.log1p(-np.minimum(p, 1 - p))
    with np.errstate(
        over="ignore", divide="ignore"
    ):  # a rate next to 0 or 1 needs more than a float holds
        return int(np.floor(np.minimum(up, np.log(0.1) / log_miss)).sum())


def _share(counts, group, amount, up):
    """Adds up to `amount` to the counts of the bool group in equal parts, one more for the lower indices."""
    index = np.flatnonzero(group)
    room = up - counts[index]
    amount = min(amount, int(room.sum()))
    if amount == 0:
        return
    low, high = 0, up  # the level all can be given, and one that is too high or holds everybody
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.minimum(room, middle).sum() <= amount else (low, middle)
    given = np.minimum(room, low)
    given[np.flatnonzero(room > low)[: amount - given.sum()]] += 1
    counts[index] += given


def _by_gain(counts, limit, p, amount, estimator, with_info_gain):
    """Adds up to `amount` to the counts, never above limit (P,), the greatest gains first."""
    index = np.flatnonzero(limit > counts)
    low, high = counts[index], limit[index]
    amount = min(amount, int((high - low).sum()))
    if amount > 0:
        counts[index] = _best(
            _Gains.of(p[index], estimator, with_info_gain), low, high, int(low.sum()) + amount
        )


def _best(gains, low, high, target):
    """Counts between low and high (P,) that sum to target and hold the greatest gains.

    Invariant: everything above `top` is taken (low), nothing below `bottom` is (high).
    """
    top, bottom = gains.at(low).max(), gains.at(high - 1).min()
    low_sum, high_sum = int(low.sum()), int(high.sum())
    while high_sum - low_sum > max(CANDIDATES, len(low)):
        middle = bottom + (top - bottom) / 2
        if not bottom < middle < top:  # equal as floats: lower index first
            width = high - low
            return low + serve_in_order(width, target - low_sum)
        active = np.flatnonzero(low < high)
        reach = _count_above(gains.take(active), low[active], high[active], middle)
        total = low_sum + int((reach - low[active]).sum())
        if total <= target:
            low[active], low_sum, top = reach, total, middle
        else:
            high[active], high_sum, bottom = reach, total, middle
    return _settle(gains, low, high, target - low_sum)


def _count_above(gains, low, high, threshold):
    """The first count in [low, high] (A,) whose next rollout gains less than the threshold."""
    while (low < high).any():
        middle = (low + high) // 2
        above = (gains.at(middle) >= threshold) & (low < high)
        low, high = np.where(above, middle + 1, low), np.where(above, high, middle)
    return low


def _settle(gains, low, high, amount):
    """low plus the `amount` greatest of the gains between low and high, equal ones by lower index."""
    width = high - low
    if amount == 0 or amount == width.sum():
        return low if amount == 0 else high
    owner = np.repeat(np.arange(len(low)), width)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(width) - width, width)
    gain = gains.take(owner).at(low[owner] + place)
    cut = np.partition(gain, len(gain) - amount)[len(gain) - amount]
    sure = np.flatnonzero(gain > cut)
    ties = np.flatnonzero(gain == cut)[: amount - len(sure)]
    return low + np.bincount(owner[np.concatenate([sure, ties])], minlength=len(low))


def serve_in_order(asked, amount):
    """What each of asked (P,) gets of `amount` when the lower indices are served first."""
    return np.clip(amount - (np.cumsum(asked) - asked), 0, asked)


@dataclass(frozen=True)
class _Gains:
    """Logarithm of the gain of one more rollout after n: base + n slope + log(1 + exp((n - 1) ratio)).

    Logarithms because p^n underflows. `ratio` is None where only one outcome counts: base + n slope.
    """

    base: np.ndarray
    slope: np.ndarray
    ratio: np.ndarray = None

    @classmethod
    def of(cls, p, estimator, with_info_gain):
        """For rates p (A,)."""
        rare = np.minimum(p, 1 - p)  # so that p and 1-p give the same float
        log_rare, log_common = _log(rare), np.log1p(-rare)
        log_p, log_q = np.where(p < 0.5, (log_rare, log_common), (log_common, log_rare))
        weight = log_p + 2 * log_q if with_info_gain else 0.0
        if estimator == "remax":
            return cls(log_q + weight, log_p)
        if estimator == "reinforce":
            return cls(log_p + weight, log_q)
        return cls(log_rare + weight, log_common, log_rare - log_common)

    def at(self, n):
        """(A,) for n (A,) rollouts."""
        gain = self.base + n * self.slope
        return gain if self.ratio is None else gain + np.log1p(np.exp((n - 1) * self.ratio))

    def take(self, index):
        """The gains of some problems."""
        return _Gains(
            self.base[index], self.slope[index], None if self.ratio is None else self.ratio[index]
        )


# workers


def jobs(counts, workers, costs=None, rng=None):
    """Rollouts as independent jobs: for each worker an int64 array of problem indices, one entry a rollout.

    counts (P,): rollouts of each problem. Without costs every rollout is dealt on its own, shuffled by the NumPy
    generator `rng` or, without one, in turn; sizes differ by one at most. With costs (P,), those of one rollout of each
    problem (a long prompt, a long answer), problems stay whole, so that a worker reads each prompt once, and go to
    workers by `balance`. Knapsack RL, appendix C.
    """
    counts = _whole_numbers(counts)
    whole("workers", workers, 1)
    if counts.ndim != 1:
        raise ValueError(f"counts: shape {counts.shape}; (P,) is needed")
    if costs is not None:
        costs = _costs(costs)
        if costs.shape != counts.shape:
            raise ValueError(f"costs {costs.shape} and counts {counts.shape}: both must be (P,)")
        return [np.repeat(part, counts[part]) for part in balance(costs * counts, workers)]
    each = np.repeat(np.arange(len(counts)), counts)
    each = each if rng is None else rng.permutation(each)
    return [each[worker::workers] for worker in range(workers)]


def balance(costs, workers):
    """Splits P jobs over workers so that their summed costs are close: Karmarkar-Karp's largest differencing.

    costs (P,), finite and not negative. Returns one ascending int64 index array a worker, the heaviest load first;
    together they hold every index once, and some are empty where there are fewer jobs than workers.
    """
    costs = _costs(costs)
    whole("workers", workers, 1)
    idle = [0.0] * (workers - 1), [None] * (workers - 1)
    heap = [(-cost, i, [cost, *idle[0]], [i, *idle[1]]) for i, cost in enumerate(costs.tolist())]
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, _merge(first, second))
    bins = heap[0][3] if heap else [None] * workers
    return [np.array(sorted(_leaves(tree)), dtype=np.int64) for tree in bins]


def _merge(first, second):
    """Two partial splits (key, order, loads, bins) as one: the heaviest bin of each with the lightest of the other."""
    loads = [a + b for a, b in zip(first[2], reversed(second[2]))]
    bins = [(a, b) for a, b in zip(first[3], reversed(second[3]))]
    order = sorted(range(len(loads)), key=lambda i: -loads[i])
    loads, bins = [loads[i] for i in order], [bins[i] for i in order]
    return loads[-1] - loads[0], min(first[1], second[1]), loads, bins


def _leaves(tree):
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack.extend(node)
        elif node is not None:
            yield node


# arguments


def _choice(name, given, allowed):
    if given not in allowed:
        raise ValueError(f"{name}={given!r}: allowed are {', '.join(allowed)}")


def _rates(p):
    p = np.asarray(p, dtype=np.float64)
    wrong = (p < 0) | (p > 1)
    if wrong.any():
        raise ValueError(
            f"p={p[wrong].flat[0]}: success rates lie in [0, 1]; NaN means never tried"
        )
    return p[()] if p.ndim == 0 else p


def _whole_numbers(n):
    n = np.asarray(n)
    if n.dtype.kind not in "iu" or (n < 0).any():
        raise ValueError(
            f"counts={n.tolist() if n.size < 10 else n.dtype}: whole numbers of at least 0 are needed"
        )
    return n.astype(np.int64)


def _costs(costs):
    costs = np.asarray(costs, dtype=np.float64)
    if costs.ndim != 1 or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError(
            f"costs: shape {costs.shape}; (P,) finite numbers of at least 0 are needed"
        )
    return costs


def _log(p):
    return np.log(p, out=np.full_like(p, NEVER), where=p > 0)


def _log_of_miss(p, estimator):
    """Logarithm of the probability that one rollout gives no gradient: p for remax, 1-p for reinforce."""
    p = np.asarray(p)
    if estimator == "remax":
        return np.where(np.isnan(p), p, _log(p))
    return np.where(np.isnan(p), p, np.log1p(-p, out=np.full_like(p, NEVER), where=p < 1))
