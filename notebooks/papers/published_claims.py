"""Every claim of the five papers that is put to recorded runs.

`published` is what the paper prints and `sizes` the same as numbers. `published_gain` is what the
paper's baseline gained over its start; sizes of accuracy are scaled by it. A claim is that a
quantity lies above 0, unless `direction` and `bound` say otherwise. `measured_by` names recorded
runs, as "folder/label" of `data/runs`. In a claim, n is the number of rollouts of a problem.
"""

from __future__ import annotations

from papers.measures import (
    Released,
    accuracy,
    change,
    difference,
    share,
    to_target,
    unsolved_at_equal_numbers,
    unsolved_at_last_visit,
)
from papers.verdicts import Claim

__all__ = ["CLAIMS"]

# The three objectives of CBS, with the full set, with a selection from the round (CBS*), and with
# one from the buffer (CBS).
CBS_FULL = ("cbs/grpo-full", "cbs/dapo-full", "cbs/gspo-full")
CBS_ROUND = ("cbs/grpo-round", "cbs/dapo-round", "cbs/gspo-round")
CBS_BUFFER = ("cbs/grpo-buffer", "cbs/dapo-buffer", "cbs/gspo-buffer")

CLAIMS = (
    # The figure has no numbers; the size and the gain are those of the released runs at their last
    # checkpoint, with n = 16 for GRPO.
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 8, equal time, points",
        place="figure 2a and 2b",
        published="higher",
        sizes=(1.8,),
        published_gain=(20.8,),
        measured_by=accuracy(arm="head-to-head/pods", baseline="head-to-head/grpo", unit="time"),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="GRPO 16",
            at=6,
            unit="hours",
        ),
    ),
    Claim(
        paper="PODS",
        claim="accuracy above GRPO with n = 32, equal time, points",
        place="figure 2c",
        published="higher",
        measured_by=accuracy(arm="head-to-head/pods", baseline="pods/grpo-32", unit="time"),
        released=Released(
            family="h100s", arm="max-variance 128 to 32", baseline="GRPO 32", at=0.66, unit="hours"
        ),
    ),
    # Our update leaves out rollouts without a gradient, in both arms.
    Claim(
        paper="PODS",
        claim="update time against GRPO with n = 32, %",
        place="figure 2, right",
        published="less",
        direction="below",
        measured_by=change(arm="head-to-head/pods", baseline="pods/grpo-32", column="update_time"),
    ),
    # The size is that of the released runs at their last checkpoint.
    Claim(
        paper="PODS",
        claim="max-variance above random, equal rounds, points",
        place="figure 4; released runs",
        published="+1.0",
        sizes=(1.0,),
        published_gain=(21.6,),
        measured_by=accuracy(arm="head-to-head/pods", baseline="pods/random", unit="round"),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="random 64 to 16",
            at=1800,
            unit="steps",
        ),
    ),
    # Scaled by the gain of max-variance, since max-reward gains little where it is published.
    Claim(
        paper="PODS",
        claim="max-variance above max-reward, equal rounds, points",
        place="figure 4; released runs",
        published="+15.3",
        sizes=(15.3,),
        published_gain=(22.6,),
        measured_by=accuracy(
            arm="head-to-head/pods",
            baseline="pods/max-reward",
            unit="round",
            gain_of="head-to-head/pods",
        ),
        released=Released(
            family="qwen2.5-3b-gsm8k",
            arm="max-variance 64 to 16",
            baseline="max-reward 64 to 16",
            at=1000,
            unit="steps",
        ),
    ),
    Claim(
        paper="AR3PO",
        claim="rollouts a problem against GRPO's 8, %",
        place="table 1",
        published="-29, -16",
        sizes=(-28.75, -16.25),
        direction="below",
        measured_by=change(
            arm="head-to-head/ar3po", baseline="head-to-head/grpo", column="rollouts"
        ),
    ),
    Claim(
        paper="AR3PO",
        claim="rollouts a round against DAPO's, %",
        place="table 1",
        published="-76, -72",
        sizes=(-76.25, -72.1),
        direction="below",
        measured_by=change(
            arm="head-to-head/ar3po", baseline="head-to-head/dapo", column="rollouts"
        ),
    ),
    # From about .3 to below .2 of the prompts, from the second epoch on. Reused responses count, as
    # in the paper.
    Claim(
        paper="AR3PO",
        claim="problems without a right response against GRPO's, %",
        place="section 4.4, figure 2c",
        published="more than -33",
        sizes=(-33.3,),
        direction="below",
        measured_by=change(
            arm="head-to-head/ar3po", baseline="head-to-head/grpo", column="unsolved", from_epoch=2
        ),
    ),
    # Not scaled: the table has no scores before training.
    Claim(
        paper="AR3PO",
        claim="accuracy above GRPO, equal rounds, points",
        place="table 1",
        published="+0.9, +1.3",
        sizes=(0.9, 1.3),
        measured_by=accuracy(arm="head-to-head/ar3po", baseline="head-to-head/grpo", unit="round"),
    ),
    Claim(
        paper="AR3PO",
        claim="at most 1 point below DAPO, equal rounds, points",
        place="table 1",
        published="+0.2, 0.0",
        sizes=(0.2, 0.0),
        direction="matches",
        margin=1.0,
        measured_by=accuracy(arm="head-to-head/ar3po", baseline="head-to-head/dapo", unit="round"),
    ),
    # Not scaled: the table has no scores before training.
    Claim(
        paper="AR3PO",
        claim="stopped gradient above direct replay, equal rounds, points",
        place="table 2",
        published="+1.3",
        sizes=(1.3,),
        measured_by=accuracy(arm="head-to-head/ar3po", baseline="ar3po/direct", unit="round"),
    ),
    Claim(
        paper="Knapsack RL",
        claim="effective-gradient ratio above GRPO's, points",
        place="section 5.2, figure 5",
        published="+20 to +40",
        sizes=(20.0, 40.0),
        measured_by=difference(
            arm="head-to-head/knapsack",
            baseline="head-to-head/grpo",
            column="effective_gradient_ratio",
            from_epoch=2,
        ),
    ),
    # 3596 against 3793 prompts, which the paper counts as allocated.
    Claim(
        paper="Knapsack RL",
        claim="problems without a right rollout at their last visit against GRPO's, "
        "equal numbers of rollouts, %",
        place="section 5.2, figure 4",
        published="-5",
        sizes=(-5.2,),
        direction="below",
        measured_by=unsolved_at_last_visit(
            arm="head-to-head/knapsack", baseline="head-to-head/grpo"
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="accuracy above GRPO, equal rollouts, points",
        place="table 1",
        published="+1.9 to +3.8",
        sizes=(3.8, 1.9, 2.7, 2.3),
        published_gain=(3.0, 20.3, 0.6, 18.5),
        measured_by=accuracy(
            arm="head-to-head/knapsack", baseline="head-to-head/grpo", unit="rollouts"
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="with N = 4 at most 1 point below GRPO with N = 8, equal rounds, points",
        place="section 5.3, figure 7",
        published="+0.3",
        sizes=(0.3,),
        direction="matches",
        margin=1.0,
        measured_by=accuracy(arm="knapsack/knapsack-4", baseline="head-to-head/grpo", unit="round"),
    ),
    # The paper says about twice the compute. The target is 80 % of the way to the score that all
    # GRPO runs reach in the rounds of the shortest run.
    Claim(
        paper="Knapsack RL",
        claim="rollouts to GRPO's score, %",
        place="section 5.3",
        published="-50",
        sizes=(-50.0,),
        direction="below",
        measured_by=to_target(
            arm="head-to-head/knapsack", baseline="head-to-head/grpo", unit="rollouts", target=0.8
        ),
    ),
    Claim(
        paper="Knapsack RL",
        claim="InfoGain gains accuracy, equal rounds, points",
        place="table 4",
        published="+1.8",
        sizes=(1.8,),
        published_gain=(19.0,),
        measured_by=accuracy(
            arm="head-to-head/knapsack", baseline="knapsack/no-info-gain", unit="round"
        ),
    ),
    # A fifth of the pool out of reach and half of it solved, as late in the paper's training: the
    # regime knapsack of the lab.
    Claim(
        paper="Knapsack RL",
        claim="effective-gradient ratio above GRPO's, half of the pool solved, points",
        place="section 5.2, figure 5",
        published="+20 to +40",
        sizes=(20.0, 40.0),
        measured_by=difference(
            arm="knapsack/regime-knapsack",
            baseline="knapsack/regime-grpo",
            column="effective_gradient_ratio",
            from_epoch=2,
        ),
    ),
    # A fifth of the pool out of reach and half of it solved, as late in the paper's training: the
    # regime knapsack of the lab.
    Claim(
        paper="Knapsack RL",
        claim="accuracy above GRPO, equal rollouts, half of the pool solved, points",
        place="table 1",
        published="+1.9 to +3.8",
        sizes=(3.8, 1.9, 2.7, 2.3),
        published_gain=(3.0, 20.3, 0.6, 18.5),
        measured_by=accuracy(
            arm="knapsack/regime-knapsack", baseline="knapsack/regime-grpo", unit="rollouts"
        ),
    ),
    Claim(
        paper="AERO",
        claim="FLOPs of a round against GRPO with n = 16, %",
        place="table 1",
        published="-50, -47",
        sizes=(-50.1, -47.0),
        direction="below",
        measured_by=change(arm="head-to-head/aero", baseline="aero/grpo-16", column="flops"),
    ),
    Claim(
        paper="AERO",
        claim="time of a round against GRPO with n = 16, %",
        place="table 1",
        published="-44, -50",
        sizes=(-44.3, -49.8),
        direction="below",
        measured_by=change(arm="head-to-head/aero", baseline="aero/grpo-16", column="time"),
    ),
    Claim(
        paper="AERO",
        claim="rollouts trained on against GRPO's 16, %",
        place="section 4.4",
        published="-71",
        sizes=(-71.25,),
        direction="below",
        measured_by=change(arm="head-to-head/aero", baseline="aero/grpo-16", column="selected"),
    ),
    # As counted in the paper: AERO's hard problems have had more rollouts.
    Claim(
        paper="AERO",
        claim="problems left without a right response against GRPO's, %",
        place="section 5.2, figure 9",
        published="-22, -27",
        sizes=(-22.3, -27.0),
        direction="below",
        measured_by=change(
            arm="head-to-head/aero", baseline="aero/grpo-16", column="unsolved", from_epoch=2
        ),
    ),
    # What is left of the claim when counting plays no part.
    Claim(
        paper="AERO",
        claim="the same over equal numbers of rollouts, %",
        place="section 5.2, figure 9",
        published="-22, -27",
        sizes=(-22.3, -27.0),
        direction="below",
        measured_by=unsolved_at_equal_numbers(
            arm="head-to-head/aero", baseline="aero/grpo-16", from_epoch=2
        ),
    ),
    Claim(
        paper="AERO",
        claim="accuracy above GRPO with n = 16, equal rounds, points",
        place="table 1",
        published="+0.5, +1.1",
        sizes=(0.5, 1.1),
        published_gain=(17.8, 15.8),
        measured_by=accuracy(arm="head-to-head/aero", baseline="aero/grpo-16", unit="round"),
    ),
    Claim(
        paper="AERO",
        claim="accuracy above GRPO with n = 5, equal rounds, points",
        place="table 6, .32 N",
        published="+2.7",
        sizes=(2.7,),
        published_gain=(15.7,),
        measured_by=accuracy(arm="head-to-head/aero", baseline="aero/grpo-5", unit="round"),
    ),
    Claim(
        paper="AERO",
        claim="gradient norm with the prior against GRPO's, rounds 70 to 90, %",
        place="table 7",
        published="+54",
        sizes=(54.0,),
        measured_by=change(
            arm="aero/grpo-prior", baseline="aero/grpo-16", column="gradient_norm", rounds=(70, 90)
        ),
    ),
    Claim(
        paper="CBS",
        claim="update time of CBS* against the full set's, %",
        place="section 6.2, figure 2",
        published="-50.4",
        sizes=(-50.4,),
        direction="below",
        measured_by=change(
            arm=CBS_ROUND,
            baseline=CBS_FULL,
            column="update_time",
        ),
    ),
    # Means over the three models with GRPO, DAPO and GSPO; 5.0, 5.8 and 2.0 % of the full set's
    # score.
    Claim(
        paper="CBS",
        claim="accuracy of CBS* above the full set's, equal rounds, points",
        place="table 2",
        published="+1.8, +1.6, +0.7",
        sizes=(1.36,),
        published_gain=(21.9,),
        measured_by=accuracy(
            arm=CBS_ROUND,
            baseline=CBS_FULL,
            unit="round",
        ),
    ),
    # As above; 4.0, 8.5 and 1.7 % of the full set's score.
    Claim(
        paper="CBS",
        claim="accuracy of CBS above the full set's, equal rounds, points",
        place="table 2",
        published="+1.5, +2.8, +0.6",
        sizes=(1.65,),
        published_gain=(21.9,),
        measured_by=accuracy(
            arm=CBS_BUFFER,
            baseline=CBS_FULL,
            unit="round",
        ),
    ),
    Claim(
        paper="CBS",
        claim="time spent on the scheduler, at most 4 %",
        place="table 3",
        published="0.7 to 3.8",
        direction="below",
        bound=4.0,
        measured_by=share(
            arm=CBS_BUFFER,
            columns=("seconds_scheduler", "seconds_buffer"),
        ),
    ),
    Claim(
        paper="CBS",
        claim="learnt scores above random ones, equal rounds, points",
        place="table 5",
        published="+1.0",
        sizes=(1.0,),
        published_gain=(26.3,),
        measured_by=accuracy(arm="cbs/grpo-buffer", baseline="cbs-ablations/random", unit="round"),
    ),
)
