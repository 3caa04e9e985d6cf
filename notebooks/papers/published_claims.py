"""Every claim of the five papers that is put to recorded runs.

Each claim is measured between tuned arms, in the regime of its paper (`regimes.py`). `published` is
what the paper prints and `sizes` the same as numbers. `published_gain` is what the paper's baseline
gained over its start; sizes of accuracy are scaled by it. A claim is that a quantity lies above 0,
unless `direction` and `bound` say otherwise. `measured_by` names recorded runs, as "folder/label"
of `data/runs`; the folder regimes/pods has the runs of the regime `pods`. In a claim, n is the
number of rollouts of a problem. `one_rate` is the claim of `data/verdicts-one-rate.csv` that was
made of runs at one learning rate for all arms, where there is one; and `headline` marks the claims
that docs/claims.md shows. `by_definition` marks those whose direction follows from what the method
is: it samples or trains on less by its rule, or counts reused or further responses as its own. They
are measured for their size, and are no evidence.
"""

from __future__ import annotations

from papers.measures import (
    Released,
    accuracy,
    against_number,
    change,
    difference,
    share,
    unsolved_at_equal_numbers,
    unsolved_at_last_visit,
)
from papers.verdicts import Claim

__all__ = ["CLAIMS"]

# CBS with the full set, with mixed mini-batches, with a selection from the round (CBS*), the same
# in as many optimizer steps as the full set takes, and from a buffer (CBS). As in the paper, means
# are over three objectives.
OBJECTIVES = ("grpo", "dapo", "gspo")
CBS_FULL = tuple(f"regimes/cbs-{base}/full" for base in OBJECTIVES)
CBS_MIXED = tuple(f"regimes/cbs-{base}/mixed" for base in OBJECTIVES)
CBS_ROUND = tuple(f"regimes/cbs-{base}/round" for base in OBJECTIVES)
CBS_STEPS = tuple(f"regimes/cbs-{base}/round-8" for base in OBJECTIVES)
CBS_BUFFER = tuple(f"regimes/cbs-{base}/buffer" for base in OBJECTIVES)
CBS_RANDOM = tuple(f"regimes/cbs-{base}/random-buffer" for base in OBJECTIVES)

PODS_SIZE = {"sizes": (1.8,), "published_gain": (20.8,)}
KNAPSACK_SIZES = {"sizes": (3.8, 1.9, 2.7, 2.3), "published_gain": (3.0, 20.3, 0.6, 18.5)}
DAPO_FLAT = 24 * 32  # rollouts of a round of 32 problems as the paper bills DAPO

PODS = (
    # The figure has no numbers; the size and the gain are those of the released runs at their last
    # checkpoint.
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 16, equal cost on an L40S, points",
        place="figure 2a; released runs",
        published="higher",
        **PODS_SIZE,
        measured_by=accuracy(arm="regimes/pods/pods", baseline="regimes/pods/grpo-16", unit="l40s"),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="GRPO 16",
            at=6,
            unit="hours",
        ),
        headline=True,
    ),
    Claim(
        paper="PODS",
        claim="the same at equal steps, points",
        place="released runs",
        published="higher",
        measured_by=accuracy(
            arm="regimes/pods/pods", baseline="regimes/pods/grpo-16", unit="round"
        ),
    ),
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 16 near the plateau, equal cost on an L40S, points",
        place="figure 2a; released runs",
        published="higher",
        **PODS_SIZE,
        measured_by=accuracy(
            arm="regimes/pods-long/pods", baseline="regimes/pods-long/grpo-16", unit="l40s"
        ),
        headline=True,
    ),
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 8, 32 problems a round, equal cost on an L40S, points",
        one_rate="accuracy above GRPO with n = 8, equal time, points",
        place="figure 2b",
        published="higher",
        measured_by=accuracy(
            arm="regimes/pods-batch/pods", baseline="regimes/pods-batch/grpo-8", unit="l40s"
        ),
    ),
    # Both sample 32 rollouts a problem, so equal rounds are equal rollouts. The figure has equal
    # rollouts in an update, and training time on its axis.
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 32 on all of them, equal rollouts, points",
        one_rate="accuracy above GRPO with n = 32, equal time, points",
        place="figure 2c",
        published="higher",
        measured_by=accuracy(
            arm="regimes/pods-batch/pods", baseline="regimes/pods-batch/grpo-32", unit="rollouts"
        ),
        released=Released(
            family="h100s", arm="max-variance 128 to 32", baseline="GRPO 32", at=0.66, unit="hours"
        ),
    ),
    # Every selected rollout is counted, as the paper's trainer computes them.
    Claim(
        paper="PODS",
        claim="FLOPs of an update against GRPO with n = 32, %",
        by_definition=True,
        one_rate="update time against GRPO with n = 32, %",
        place="figure 2, right",
        published="less",
        direction="below",
        measured_by=change(
            arm="regimes/pods-batch/pods",
            baseline="regimes/pods-batch/grpo-32",
            column="tokens_selected",
        ),
    ),
    Claim(
        paper="PODS",
        claim="max-variance above random, equal hours and equal steps, points",
        one_rate="max-variance above random, equal rounds, points",
        place="figure 4; released runs",
        published="+1.0",
        sizes=(1.0,),
        published_gain=(21.6,),
        measured_by=accuracy(arm="regimes/pods/pods", baseline="regimes/pods/random", unit="round"),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="random 64 to 16",
            at=1800,
            unit="steps",
        ),
        headline=True,
    ),
    # The size is the one at equal hours; at equal steps it is 16.8. The two rules cost as much a
    # step here, where responses do not grow long. Scaled by the gain of max-variance, since
    # max-reward gains little where it is published.
    Claim(
        paper="PODS",
        claim="max-variance above max-reward, equal hours and equal steps, points",
        one_rate="max-variance above max-reward, equal rounds, points",
        place="figure 4; released runs",
        published="+15.3",
        sizes=(15.3,),
        published_gain=(22.6,),
        measured_by=accuracy(
            arm="regimes/pods/pods",
            baseline="regimes/pods/max-reward",
            unit="round",
            gain_of="regimes/pods/pods",
        ),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="max-reward 64 to 16",
            at=1000,
            unit="steps",
        ),
    ),
)

AR3PO = (
    Claim(
        paper="AR3PO",
        claim="rollouts a problem against GRPO's 8, %",
        by_definition=True,
        one_rate="rollouts a problem against GRPO's 8, %",
        place="table 1",
        published="-29, -16",
        sizes=(-28.75, -16.25),
        direction="below",
        measured_by=change(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/grpo", column="rollouts"
        ),
    ),
    # The paper bills DAPO for three draws of eight rollouts, whatever it draws.
    Claim(
        paper="AR3PO",
        claim="rollouts a round against DAPO's flat 24 a trained problem, %",
        by_definition=True,
        place="table 1",
        published="-76, -72",
        sizes=(-76.25, -72.1),
        direction="below",
        # AR3PO goes on until it has sampled as much as GRPO in its 100 rounds.
        measured_by=against_number(
            arm="regimes/ar3po/ar3po", column="rollouts", number=DAPO_FLAT, rounds=100
        ),
    ),
    Claim(
        paper="AR3PO",
        claim="rollouts a round against those that DAPO samples, %",
        by_definition=True,
        one_rate="rollouts a round against DAPO's, %",
        place="table 1",
        published="-76, -72",
        sizes=(-76.25, -72.1),
        direction="below",
        measured_by=change(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/dapo", column="rollouts"
        ),
    ),
    # From about .3 to below .2 of the prompts, from the second epoch on. Reused responses count, as
    # in the paper.
    Claim(
        paper="AR3PO",
        claim="problems without a right response against GRPO's, %",
        by_definition=True,
        one_rate="problems without a right response against GRPO's, %",
        place="section 4.4, figure 2c",
        published="more than -33",
        sizes=(-33.3,),
        direction="below",
        measured_by=change(
            arm="regimes/ar3po/ar3po",
            baseline="regimes/ar3po/grpo",
            column="unsolved",
            from_epoch=2,
        ),
    ),
    # Not scaled: the table has no scores before training.
    Claim(
        paper="AR3PO",
        claim="accuracy above GRPO, equal rounds, points",
        one_rate="accuracy above GRPO, equal rounds, points",
        place="table 1",
        published="+0.9, +1.3",
        sizes=(0.9, 1.3),
        measured_by=accuracy(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/grpo", unit="round"
        ),
        headline=True,
    ),
    # The same with 200 rounds in place of 100, where both have nearly stopped to gain.
    Claim(
        paper="AR3PO",
        claim="accuracy above GRPO near the plateau, equal rounds, points",
        place="table 1",
        published="+0.9, +1.3",
        sizes=(0.9, 1.3),
        measured_by=accuracy(
            arm="regimes/ar3po-long/ar3po", baseline="regimes/ar3po-long/grpo", unit="round"
        ),
        headline=True,
    ),
    Claim(
        paper="AR3PO",
        claim="at most 1 point below DAPO, equal rounds, points",
        one_rate="at most 1 point below DAPO, equal rounds, points",
        place="table 1",
        published="+0.2, 0.0",
        sizes=(0.2, 0.0),
        direction="matches",
        margin=1.0,
        measured_by=accuracy(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/dapo", unit="round"
        ),
        headline=True,
    ),
    # Not scaled: the table has no scores before training.
    Claim(
        paper="AR3PO",
        claim="stopped gradient above direct replay, equal rounds, points",
        one_rate="stopped gradient above direct replay, equal rounds, points",
        place="table 2",
        published="+1.3",
        sizes=(1.3,),
        measured_by=accuracy(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/direct", unit="round"
        ),
    ),
    # Section 4.2 says it of reuse in general; the paper has no arm without it.
    Claim(
        paper="AR3PO",
        claim="recomputed probabilities above no reuse, equal rounds, points",
        place="section 4.2",
        published="higher",
        measured_by=accuracy(
            arm="regimes/ar3po/recompute", baseline="regimes/ar3po/no-reuse", unit="round"
        ),
    ),
    Claim(
        paper="AR3PO",
        claim="stopped gradient above no reuse, equal rounds, points",
        place="section 4.2",
        published="higher",
        measured_by=accuracy(
            arm="regimes/ar3po/ar3po", baseline="regimes/ar3po/no-reuse", unit="round"
        ),
    ),
)


# By the mean number of rollouts of a problem. With N = 4 it is 39.8 against 45.5 in the text.
KNAPSACK_PUBLISHED = {8: "+1.9 to +3.8", 4: "+5.7"}
KNAPSACK_SIZES_AT = {8: KNAPSACK_SIZES, 4: {"sizes": (5.7,), "published_gain": (13.1,)}}


def _knapsack_at(n: int) -> Claim:
    """Knapsack RL above GRPO where both sample n rollouts of a problem on average."""
    return Claim(
        paper="Knapsack RL",
        claim=f"accuracy above GRPO, both with N = {n}, equal rollouts, points",
        one_rate="accuracy above GRPO, equal rollouts, half of the pool solved, points"
        if n == 8
        else "",
        place="table 1" if n == 8 else "section 5.3, figure 7",
        published=KNAPSACK_PUBLISHED.get(n, "higher"),
        **KNAPSACK_SIZES_AT.get(n, {}),
        measured_by=accuracy(
            arm=f"regimes/knapsack/knapsack-{n}",
            baseline=f"regimes/knapsack/grpo-{n}",
            unit="rollouts",
        ),
        headline=n == 8,
    )


KNAPSACK = (
    Claim(
        paper="Knapsack RL",
        claim="effective-gradient ratio above GRPO's, points",
        one_rate="effective-gradient ratio above GRPO's, half of the pool solved, points",
        place="section 5.2, figure 5",
        published="+20 to +40",
        sizes=(20.0, 40.0),
        measured_by=difference(
            arm="regimes/knapsack/knapsack-8",
            baseline="regimes/knapsack/grpo-8",
            column="effective_gradient_ratio",
            from_epoch=2,
        ),
        headline=True,
    ),
    # 3596 against 3793 prompts, which the paper counts as allocated.
    Claim(
        paper="Knapsack RL",
        claim="problems without a right rollout at their last visit against GRPO's, "
        "equal numbers of rollouts, %",
        one_rate="problems without a right rollout at their last visit against GRPO's, "
        "equal numbers of rollouts, %",
        place="section 5.2, figure 4",
        published="-5",
        sizes=(-5.2,),
        direction="below",
        measured_by=unsolved_at_last_visit(
            arm="regimes/knapsack/knapsack-8", baseline="regimes/knapsack/grpo-8"
        ),
    ),
    *(_knapsack_at(n) for n in (4, 8, 16)),
    Claim(
        paper="Knapsack RL",
        claim="accuracy above GRPO near the plateau, both with N = 8, equal rollouts, points",
        place="table 1",
        published="+1.9 to +3.8",
        **KNAPSACK_SIZES,
        measured_by=accuracy(
            arm="regimes/knapsack-long/knapsack-8",
            baseline="regimes/knapsack-long/grpo-8",
            unit="rollouts",
        ),
        headline=True,
    ),
    Claim(
        paper="Knapsack RL",
        claim="with N = 4 at most 1 point below GRPO with N = 8, equal rounds, points",
        one_rate="with N = 4 at most 1 point below GRPO with N = 8, equal rounds, points",
        place="section 5.3, figure 7",
        published="+0.3",
        sizes=(0.3,),
        direction="matches",
        margin=1.0,
        measured_by=accuracy(
            arm="regimes/knapsack/knapsack-4", baseline="regimes/knapsack/grpo-8", unit="round"
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="InfoGain gains accuracy, equal rounds, points",
        one_rate="InfoGain gains accuracy, equal rounds, points",
        place="table 4",
        published="+1.8",
        sizes=(1.8,),
        published_gain=(19.0,),
        measured_by=accuracy(
            arm="regimes/knapsack/knapsack-8",
            baseline="regimes/knapsack/no-info-gain",
            unit="round",
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="the fallback gains accuracy, equal rounds, points",
        place="appendix C",
        published="higher",
        measured_by=accuracy(
            arm="regimes/knapsack/knapsack-8", baseline="regimes/knapsack/no-fallback", unit="round"
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="the bounds 2 and 128 gain accuracy, equal rounds, points",
        place="appendix G.4",
        published="higher",
        measured_by=accuracy(
            arm="regimes/knapsack/knapsack-8", baseline="regimes/knapsack/no-bounds", unit="round"
        ),
    ),
)

AERO = (
    Claim(
        paper="AERO",
        claim="FLOPs of a round against GRPO with n = 16, %",
        by_definition=True,
        one_rate="FLOPs of a round against GRPO with n = 16, %",
        place="table 1",
        published="-50, -47",
        sizes=(-50.1, -47.0),
        direction="below",
        measured_by=change(
            arm="regimes/aero/aero",
            baseline="regimes/aero/grpo-16",
            column="flops",
            rounds=(1, 100),
        ),
        headline=True,
    ),
    # The model of two A10, on which the paper's 1.5B models ran.
    Claim(
        paper="AERO",
        claim="time of a round against GRPO with n = 16 on two A10, %",
        by_definition=True,
        one_rate="time of a round against GRPO with n = 16, %",
        place="table 1",
        published="-44, -50",
        sizes=(-44.3, -49.8),
        direction="below",
        measured_by=change(
            arm="regimes/aero/aero", baseline="regimes/aero/grpo-16", column="a10", rounds=(1, 100)
        ),
    ),
    Claim(
        paper="AERO",
        claim="rollouts trained on against GRPO's 16, %",
        by_definition=True,
        one_rate="rollouts trained on against GRPO's 16, %",
        place="section 4.4",
        published="-71",
        sizes=(-71.25,),
        direction="below",
        measured_by=change(
            arm="regimes/aero/aero",
            baseline="regimes/aero/grpo-16",
            column="selected",
            rounds=(1, 100),
        ),
    ),
    # As counted in the paper: AERO's hard problems have had more rollouts.
    Claim(
        paper="AERO",
        claim="problems left without a right response against GRPO's, %",
        by_definition=True,
        one_rate="problems left without a right response against GRPO's, %",
        place="section 5.2, figure 9",
        published="-22, -27",
        sizes=(-22.3, -27.0),
        direction="below",
        measured_by=change(
            arm="regimes/aero/aero",
            baseline="regimes/aero/grpo-16",
            column="unsolved",
            from_epoch=2,
        ),
    ),
    # What is left of the claim when counting plays no part.
    Claim(
        paper="AERO",
        claim="the same over equal numbers of rollouts, %",
        one_rate="the same over equal numbers of rollouts, %",
        place="section 5.2, figure 9",
        published="-22, -27",
        sizes=(-22.3, -27.0),
        direction="below",
        measured_by=unsolved_at_equal_numbers(
            arm="regimes/aero/aero", baseline="regimes/aero/grpo-16", from_epoch=2
        ),
    ),
    Claim(
        paper="AERO",
        claim="accuracy above GRPO with n = 16, equal rounds, points",
        one_rate="accuracy above GRPO with n = 16, equal rounds, points",
        place="table 1",
        published="+0.5, +1.1",
        sizes=(0.5, 1.1),
        published_gain=(17.8, 15.8),
        measured_by=accuracy(
            arm="regimes/aero/aero", baseline="regimes/aero/grpo-16", unit="round"
        ),
        headline=True,
    ),
    # The three models of table 6, with .32 N, N = 6 and N = 5. With N = 5 the third hardly learns.
    Claim(
        paper="AERO",
        claim="accuracy above GRPO with n = 5, equal rounds, points",
        one_rate="accuracy above GRPO with n = 5, equal rounds, points",
        place="table 6, .32 N",
        published="+2.7, +2.5, +17.8",
        sizes=(2.7, 2.5, 17.8),
        published_gain=(15.7, 14.4, 2.2),
        measured_by=accuracy(arm="regimes/aero/aero", baseline="regimes/aero/grpo-5", unit="round"),
    ),
    Claim(
        paper="AERO",
        claim="gradient norm with the prior against GRPO's, rounds 70 to 90, %",
        one_rate="gradient norm with the prior against GRPO's, rounds 70 to 90, %",
        place="table 7",
        published="+54",
        sizes=(54.0,),
        measured_by=change(
            arm="regimes/aero/grpo-prior",
            baseline="regimes/aero/grpo-16",
            column="gradient_norm",
            rounds=(70, 90),
        ),
    ),
    Claim(
        paper="AERO",
        claim="GRPO gains accuracy by the prior, equal rounds, points",
        place="table 4",
        published="+0.4",
        sizes=(0.4,),
        published_gain=(15.6,),
        measured_by=accuracy(
            arm="regimes/aero/grpo-prior", baseline="regimes/aero/grpo-16", unit="round"
        ),
    ),
    Claim(
        paper="AERO",
        claim="rejection gains accuracy, equal rounds, points",
        place="table 4",
        published="+0.5",
        sizes=(0.5,),
        published_gain=(17.8,),
        measured_by=accuracy(
            arm="regimes/aero/aero", baseline="regimes/aero/no-strategy-3", unit="round"
        ),
    ),
)

CBS = (
    # Every selected token is counted, as the paper's trainer computes them.
    Claim(
        paper="CBS",
        claim="tokens of CBS*'s updates against the full set's, %",
        by_definition=True,
        one_rate="update time of CBS* against the full set's, %",
        place="section 6.2, figure 2",
        published="-50.4",
        sizes=(-50.4,),
        direction="below",
        measured_by=change(arm=CBS_ROUND, baseline=CBS_FULL, column="tokens_selected"),
    ),
    # Means over the three models with GRPO, DAPO and GSPO; 5.0, 5.8 and 2.0 % of the full set's
    # score.
    Claim(
        paper="CBS",
        claim="accuracy of CBS* above the full set's, equal rounds, points",
        one_rate="accuracy of CBS* above the full set's, equal rounds, points",
        place="table 2",
        published="+1.8, +1.6, +0.7",
        sizes=(1.36,),
        published_gain=(21.9,),
        measured_by=accuracy(arm=CBS_ROUND, baseline=CBS_FULL, unit="round"),
        headline=True,
    ),
    Claim(
        paper="CBS",
        claim="the same with mini-batches of 8, so that CBS* takes as many steps, points",
        place="table 2",
        published="+1.8, +1.6, +0.7",
        sizes=(1.36,),
        published_gain=(21.9,),
        measured_by=accuracy(arm=CBS_STEPS, baseline=CBS_FULL, unit="round"),
    ),
    Claim(
        paper="CBS",
        claim="the same against the full set with mixed mini-batches, points",
        place="table 2",
        published="+1.8, +1.6, +0.7",
        sizes=(1.36,),
        published_gain=(21.9,),
        measured_by=accuracy(arm=CBS_STEPS, baseline=CBS_MIXED, unit="round"),
    ),
    # As above; 4.0, 8.5 and 1.7 % of the full set's score.
    Claim(
        paper="CBS",
        claim="accuracy of CBS above the full set's, equal rounds, points",
        one_rate="accuracy of CBS above the full set's, equal rounds, points",
        place="table 2",
        published="+1.5, +2.8, +0.6",
        sizes=(1.65,),
        published_gain=(21.9,),
        measured_by=accuracy(arm=CBS_BUFFER, baseline=CBS_FULL, unit="round"),
        headline=True,
    ),
    # The mean over three models.
    Claim(
        paper="CBS",
        claim="accuracy of CBS above the full set's near the plateau, GRPO, equal rounds, points",
        place="table 2",
        published="+1.5",
        sizes=(1.53,),
        published_gain=(21.0,),
        measured_by=accuracy(
            arm="regimes/cbs-long/buffer", baseline="regimes/cbs-long/full", unit="round"
        ),
        headline=True,
    ),
    Claim(
        paper="CBS",
        claim="the same near the plateau at each run's best checkpoint, points",
        place="table 2",
        published="+1.5",
        sizes=(1.53,),
        published_gain=(21.0,),
        measured_by=accuracy(
            arm="regimes/cbs-long/buffer",
            baseline="regimes/cbs-long/full",
            unit="round",
            checkpoint="best",
        ),
        headline=True,
    ),
    Claim(
        paper="CBS",
        claim="time spent on the scheduler, at most 4 %",
        one_rate="time spent on the scheduler, at most 4 %",
        place="table 3",
        published="1.0 to 3.8",
        direction="below",
        bound=4.0,
        measured_by=share(arm=CBS_BUFFER, columns=("seconds_scheduler", "seconds_buffer")),
    ),
    Claim(
        paper="CBS",
        claim="learnt scores above random ones, equal rounds, points",
        one_rate="learnt scores above random ones, equal rounds, points",
        place="table 5",
        published="+1.0, +4.3, +3.4",
        sizes=(2.88,),
        published_gain=(25.5,),
        measured_by=accuracy(arm=CBS_BUFFER, baseline=CBS_RANDOM, unit="round"),
    ),
)

CLAIMS = (*PODS, *AR3PO, *KNAPSACK, *AERO, *CBS)
