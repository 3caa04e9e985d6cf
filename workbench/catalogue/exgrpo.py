r"""Answers to problems that were partly solved.

ExGRPO (arXiv [2510.02245](https://arxiv.org/abs/2510.02245)). Right responses are kept in buckets
by the number $c$ of right rollouts at the problem's last visit. A bucket is drawn with the weight

$$w_c \propto \exp\big(-\frac{1}{2} (c - n/2)^2\big),$$

so problems that were half solved come back most often. Within a bucket all problems have the same
chance, so a problem in a small bucket comes back more often than one in a large bucket. Two parts
of the paper are left out, as the notes of `replay.Buckets` say: how it changes the ratio of
replayed tokens, and how it chooses problems. *Released code.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import GroupNormalized, Method, Objective, Uniform, method
from workbench.rules.replay import Joined, RightAnswers, is_bare
from workbench.rules.success_rates import outcomes
from workbench.slots import Context, Rollouts, state_field
from workbench.utils.bounds import Count, Share
from workbench.utils.groups import place_within


def bucket_weights(right: np.ndarray, n: int) -> np.ndarray:
    """Weights of problems with so many of n rollouts right: a normal density around n / 2.

    >>> bucket_weights(np.array([1, 2, 4]), 8).round(4)
    array([0.0044, 0.054 , 0.3989])
    """
    return np.exp(-((right - n / 2) ** 2) / 2) / np.sqrt(2 * np.pi)


def drawn_from_buckets(
    right: np.ndarray, n: int, size: int, rng: np.random.Generator
) -> np.ndarray:
    """`size` of P problems, by way of the buckets that they are in.

    Parameters
    ----------
    right : (P,) int64
        Of each problem how many of n rollouts were right; problems of one number share a bucket.
    n : int
    size : int
        At most P.
    rng : numpy.random.Generator

    Returns
    -------
    places : (size,) int64, ascending

    Notes
    -----
    How many problems each bucket gives is drawn by `bucket_weights` alone. What exceeds the
    problems of a bucket is drawn again from the others. Within a bucket each problem is as likely
    as another.

    References
    ----------
    ExGRPO (arXiv 2510.02245) and its released code.
    """
    buckets, bucket_of, held = np.unique(right, return_inverse=True, return_counts=True)
    # The floor lets buckets far from the middle be drawn where no others are left.
    weights = np.maximum(bucket_weights(buckets, n), np.finfo(float).tiny)
    wanted = np.zeros(len(buckets), dtype=np.int64)
    while (missing := size - int(wanted.sum())) > 0:
        has_more = np.where(wanted < held, weights, 0.0)
        wanted += rng.multinomial(missing, has_more / has_more.sum())
        wanted = np.minimum(wanted, held)
    order = rng.permutation(len(right))
    return np.sort(order[place_within(bucket_of[order]) < wanted[bucket_of[order]]])


@dataclass
class Buckets(RightAnswers):
    """One right answer joins the group of a problem that was partly solved at its last visit.

    Problems are in buckets by the number c of correct rollouts at their last visit. Problems that
    were all right retire. Of the round's problems with stored answers, `share` of them get one:
    first a bucket is drawn for each answer, and then problems within the buckets, all alike. A
    bucket's weight is the normal density of c with mean n / 2 and deviation 1, however many
    problems it holds; what a bucket cannot give falls to the others. Nothing is replayed before the
    share of correct rollouts exceeds `start`.

    Attributes
    ----------
    share : float
        Share of a round's problems that get an old answer.
    start : float
    capacity : int
        Answers kept for a problem.

    Notes
    -----
    Four things differ from the paper. It also chooses which problems come next by these buckets;
    here the curriculum stays as it is. It takes the answer of lowest entropy under the current
    policy; here it is the lowest when it was sampled. It keeps the old log-probabilities and shapes
    the ratio of replayed tokens, w / (w + 0.1); here log-probabilities are computed anew. It drops
    answers of the same text; here they stay.

    References
    ----------
    ExGRPO (arXiv 2510.02245): share .5, start .35.
    """

    share: Share = 0.5
    start: Share = 0.35
    capacity: Count = 8
    right: dict[str, int] = state_field(dict)
    started: bool = state_field(bool)

    needs = frozenset({"old_responses", "current_logprobs", "entropy"})

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append one old answer to some of the problems in the buckets."""
        if not self.started:
            return rollouts, candidates
        bare = candidates[is_bare(rollouts)[candidates]]
        problems, problem_of_row = rollouts.take(bare).problems()
        rows_of = self.rows_by_problem()
        known = [str(p) for p in problems if self.right.get(str(p), 0) and str(p) in rows_of]
        if not known:
            return rollouts, candidates
        # Counts may differ by problem; the largest stands for the size of a group.
        n = np.bincount(problem_of_row).max()
        right = np.array([self.right[problem] for problem in known])
        size = min(len(known), round(self.share * len(problems)))
        chosen = drawn_from_buckets(right, int(n), size, context.rng("reuse"))
        rows = []
        for i in chosen:
            # The answer that the policy was surest of when it was sampled.
            stored = rows_of[known[i]]
            rows.append(stored[np.argmin(self.stored.entropy[stored])])
        return self.join_rows(rollouts, candidates, rows, context)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The buckets of the round's problems change, and their new right answers are kept."""
        fresh = rollouts.take(rollouts.round == context.round)
        if not len(fresh):
            return  # a trainer may leave out rollouts that nothing scored
        # Once begun, replay does not stop again when the share falls.
        self.started = self.started or bool(fresh.correct.mean() > self.start)
        if not self.started:
            return
        ids, right, sizes = outcomes(fresh)
        for problem, c, n in zip(ids, right.tolist(), sizes.tolist()):
            self.right[problem] = 0 if c == n else c  # all right: the problem retires
        super().feedback(fresh, context)


@method(paper="ExGRPO (arXiv 2510.02245)", decides="replay")
def exgrpo(n: int = 8, replay: Buckets | None = None) -> Method:
    """ExGRPO's buckets: a right answer joins problems that were partly solved at their last visit.

    Parameters
    ----------
    n : int
        New rollouts of a problem.
    replay : Buckets, optional
        None: with the settings of the paper. Its notes say what is left out.

    References
    ----------
    ExGRPO (arXiv 2510.02245): no division by the deviation, and a constant length. It has 7 new
    rollouts beside an old one, and its loss has no clip range and an entropy bonus of .001; ours
    has the clip range of `Objective` and no bonus.
    """
    return Method(
        "exgrpo",
        allocator=Uniform(n),
        replay=replay or Buckets(),
        advantage=GroupNormalized(scale=False),
        objective=Objective(loss_aggregation="constant"),
    )
