"""The further papers, each checked against numbers worked out by hand from its formulas.

The objectives among them are in test_surrogates.py.
"""

import itertools
import math
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from conftest import go, small_lab
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.catalogue.hora import by_hit_utility
from workbench.catalogue.mapp import mixed_group_probability
from workbench.catalogue.pass_at_k import pass_at_k_normalized
from workbench.catalogue.pkpo import pkpo
from workbench.catalogue.vip import by_variance
from workbench.problems import Pool, Problem
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import collect
from workbench.rules import advantages, allocators, curricula, replay, selectors
from workbench.rules.advantages import group_normalized
from workbench.rules.budgets import in_proportion, nonzero_gradient_probability
from workbench.rules.success_rates import Posteriors

HERE = Context(seed=0, round=1)


def table(round=1, **outcomes):
    """Rollouts of problems by id: a text of 0 and 1, one for each."""
    correct = [mark == "1" for marks in outcomes.values() for mark in marks]
    ids = [key for key, marks in outcomes.items() for _ in marks]
    size = len(ids)
    return Rollouts(
        problem=ids,
        correct=correct,
        reward=np.array(correct, float),
        draw=np.arange(size),
        round=np.full(size, round),
        columns={
            "gradient": np.ones(size, bool),
            "uses": np.zeros(size, int),
        },
    )


def pool_of(size, levels=None):
    levels = levels or [1] * size
    return Pool([Problem(f"p{i}", f"{i}?", "1", level=levels[i]) for i in range(size)])


def drive(allocator, problems, outcomes, further=()):
    """One round of an allocator; `outcomes` has a text of 0 and 1 for each problem."""
    requests = []
    left = list(further)

    def sample(problems, counts, before, stage):
        requests.append(counts.tolist())
        marks = {
            problem.id: outcomes[problem.id][start : start + count]
            for problem, start, count in zip(problems, before, counts)
        }
        return table(**marks)

    def more(n, problems):
        drawn = left[:n]
        del left[:n]
        return drawn

    rollouts, rows = collect(allocator, list(problems), HERE, sample, more)
    return requests, rollouts, rows


def binomial(n, p):
    return [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]


# Reinforce-Ada (arXiv 2510.04996)


def test_reinforce_ada_keeps_two_and_two_against_the_mean_of_the_whole_pool():
    """A pool of 24 with 3 right: 2 + 2 stay, with +0.875 and -0.125, which is no sum of zero."""
    rollouts = table(a="0" * 10 + "111" + "0" * 11)
    method = wb.methods.reinforce_ada()
    selection = method.selector.select(rollouts, HERE)
    assert selection.rows.tolist() == [0, 1, 10, 11]
    assert selection.baseline == "group"
    advantage = method.advantage(rollouts, HERE)[selection.rows]
    assert advantage.tolist() == pytest.approx([-0.125, -0.125, 0.875, 0.875])


@pytest.mark.parametrize(
    "marks, right",
    [
        ("10000000", 1),  # one right, and three wrong ones fill up
        ("11111110", 3),
        ("11110000", 2),
        ("00000000", 0),
        ("11111111", 4),
    ],
)
@pytest.mark.parametrize("mode", ["balanced", "positive"])
def test_reinforce_ada_fills_up_with_the_other_kind(marks, right, mode):
    rows = wb.methods.reinforce_ada(mode).selector.select(table(a=marks), HERE).rows
    assert len(rows) == 4
    assert sum(marks[row] == "1" for row in rows) == right


@pytest.mark.parametrize(
    "mode, p, expected",
    [
        ("positive", 0.5, 8.03),
        ("positive", 0.1, 13.56),
        ("positive", 0.02, 25.52),
        ("balanced", 0.5, 8.57),
        ("balanced", 0.1, 20.96),
        ("balanced", 0.02, 30.94),
    ],
)
def test_reinforce_ada_expected_rollouts(mode, p, expected):
    """Four stages of 8; the exact expectation over all outcomes of the stages."""
    allocator = wb.methods.reinforce_ada(mode).allocator

    def goes_on(right, total):
        marks = "1" * right + "0" * (total - right)
        probe = allocators.Staged(2, total, allocator.right, allocator.wrong)
        requests, _, _ = drive(probe, [Problem("a", "?", "1")], {"a": marks + "0" * total})
        return len(requests) == 2

    reached = {0: 1.0}  # rollouts that are right so far -> probability of being open with them
    mean = 0.0
    for stage in range(1, allocator.stages + 1):
        mean += allocator.k * sum(reached.values())
        after = {}
        for right, chance in reached.items():
            for c, of_stage in enumerate(binomial(allocator.k, p)):
                after[right + c] = after.get(right + c, 0) + chance * of_stage
        total = stage * allocator.k
        reached = {right: chance for right, chance in after.items() if goes_on(right, total)}
    assert mean == pytest.approx(expected, abs=5e-3)


def test_reinforce_ada_est_counts_by_the_inverse_root():
    rates = np.array([0.04, 0.25, 1.0])
    assert in_proportion(1 / np.sqrt(rates), 24, low=2, up=32).tolist() == [15, 6, 3]


def test_reinforce_ada_est_has_an_advantage_where_penalties_make_the_mean_negative():
    rewards = np.array([-1.0, -1.0, 0.0, -1.0])
    rollouts = Rollouts(problem=np.repeat("a", 4), reward=rewards, correct=rewards == 0)
    found = advantages.InverseRootWeighted()(rollouts, Context(round=1))
    assert np.isfinite(found).all() and found[2] > 0 > found[0]


@pytest.mark.parametrize("keep", ["x", None, 1, 2.5])
def test_reinforce_ada_names_what_it_cannot_keep(keep):
    with pytest.raises(ValueError, match="keep="):
        wb.methods.reinforce_ada(keep=keep)


def test_reinforce_ada_est_estimates_from_counts_that_decay_to_zero():
    """lambda = 0.5: 4 of 8, then 0 of 8, leave 2 of 12; with a = b = .5 that is 2.5 / 13."""
    allocator = allocators.InverseRoot(8, decay=0.5)
    allocator.feedback(table(a="11110000"), HERE)
    allocator.feedback(table(a="00000000", round=2), Context(round=2))
    assert allocator.posteriors.of(["a"]).tolist() == [[2.0, 10.0]]
    weighted = advantages.InverseRootWeighted(eps=0.01)(table(a="1000"), HERE)
    assert weighted == pytest.approx(np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(0.26))


def test_reinforce_ada_est_gives_rollouts_by_one_over_the_root_of_the_rate():
    allocator = allocators.InverseRoot(8)
    # With a = b = .5 the rates are .5 / 10 and 8.5 / 10.
    allocator.posteriors.counts = {"a": (0.0, 9.0), "b": (8.0, 1.0)}
    weights = allocator._weights(["a", "b"])
    assert weights == pytest.approx([1 / math.sqrt(0.06), 1 / math.sqrt(0.86)])


# GRESO (arXiv 2506.02177)


def test_greso_skips_more_with_the_length_of_a_streak():
    greso = curricula.Greso()
    assert greso.skip_probability("never seen") == 0
    for number, expected in {1: 0.5, 3: 0.875, 6: 0.984375, 7: 0.99}.items():
        greso.streaks["easy"] = [number, 0]
        greso.streaks["hard"] = [0, number]
        assert greso.skip_probability("easy") == pytest.approx(expected)
        assert greso.skip_probability("hard") == pytest.approx(expected)


def test_greso_gives_what_is_left_and_learns_nothing_from_nothing():
    greso = curricula.Greso(floor=1.0)
    taken = frozenset({"p0", "p1"})
    more = greso.choose(pool_of(4), 3, Context(round=1, taken=taken))
    assert sorted(problem.id for problem in more) == ["p2", "p3"]
    greso.feedback(table(p0="11").take(np.arange(0)), replace(HERE, epoch=2))
    assert greso.bases == [0.5, 0.5]


def test_greso_streaks_end_with_a_mixed_group():
    greso = curricula.Greso()
    for marks, expected in [("0000", [0, 1]), ("0000", [0, 2]), ("1111", [1, 0]), ("01", [0, 0])]:
        greso.feedback(table(a=marks), HERE)
        assert greso.streaks["a"] == expected


@pytest.mark.parametrize("n", [2, 8, 16, 128])
def test_greso_counts_a_group_with_one_other_rollout_as_mixed(n):
    greso = curricula.Greso()
    for marks, expected in (
        ("1" + "0" * (n - 1), [0, 0]),
        ("0" + "1" * (n - 1), [0, 0]),
        ("0" * n, [0, 1]),
        ("1" * n, [1, 0]),
    ):
        greso.feedback(table(a=marks), HERE)
        assert greso.streaks["a"] == expected


def test_greso_rates_move_to_their_cap_in_45_rounds():
    greso = curricula.Greso()
    mixed = table(a="01", b="01")
    greso.feedback(mixed, Context(round=1, epoch=0))
    assert greso.bases == [0.5, 0.5]  # the first epoch changes nothing
    for _ in range(44):
        greso.feedback(mixed, Context(round=1, epoch=1))
    assert greso.bases[0] < 0.945
    greso.feedback(mixed, Context(round=1, epoch=1))
    assert greso.bases == pytest.approx([0.95, 0.95])
    greso.feedback(table(a="11", b="01"), Context(round=1, epoch=1))  # half of the groups are easy
    assert greso.bases == pytest.approx([0.94, 0.95])


def test_greso_refills_by_the_share_of_mixed_groups():
    refill = wb.methods.greso().allocator.refill
    few = np.arange(384) < 80
    many = np.arange(384) < 200
    assert allocators._refilled(256 - 80, few, refill, 384) == 384  # 1055 are estimated
    assert allocators._refilled(256 - 200, many, refill, 384) == 134
    # Without a mixed group the share is taken to be 1/20.
    assert allocators._refilled(3, np.zeros(10, bool), 1.0, 384) == 60
    assert allocators._refilled(1, np.ones(10, bool), 0.5, 384) == 1, "at least one"


# SPEED-RL (arXiv 2506.09016)


def test_speed_screening_pays_where_dead_problems_are_mixed_in():
    def qualify(p):
        return nonzero_gradient_probability(4, p)

    def cost(rates, first, further):
        share = np.mean([nonzero_gradient_probability(first, p) for p in rates])
        return first / share + further

    assert [float(qualify(p)) for p in (0.5, 0.1, 0.02)] == pytest.approx(
        [0.875, 0.3438, 0.0776], abs=5e-5
    )
    assert cost([0, 0.5], 4, 20) == pytest.approx(29.1, abs=0.05)
    assert cost([0, 0.5], 24, 0) == pytest.approx(48.0, abs=0.05)
    assert cost([0, 0.1], 4, 20) == pytest.approx(43.3, abs=0.05)
    assert cost([0, 0.1], 24, 0) == pytest.approx(52.2, abs=0.05)
    # With the same rate everywhere it is never cheaper.
    assert cost([0.1], 4, 20) == pytest.approx(31.6, abs=0.05)
    assert cost([0.1], 24, 0) == pytest.approx(26.1, abs=0.05)


def test_speed_asks_further_rollouts_of_mixed_problems_only():
    problems = pool_of(3)
    outcomes = {"p0": "0" * 24, "p1": "0100" + "0" * 20, "p2": "1" * 24}
    requests, rollouts, rows = drive(allocators.Screening(4, 20), problems, outcomes)
    assert requests == [[4, 4, 4], [0, 20, 0]]
    assert rollouts.problem[rows].tolist() == ["p1"] * 24


def test_speed_screens_until_there_are_enough_and_lets_all_mixed_ones_go_on():
    problems = list(pool_of(5))
    outcomes = {f"p{i}": "0000" for i in range(2)} | {f"p{i}": "0101" for i in (2, 3, 4)}
    screening = allocators.Screening(2, 2, groups=2)
    requests, rollouts, rows = drive(screening, problems[:2], outcomes, problems[2:])
    assert requests == [[2, 2], [0, 0, 2, 2], [0, 0, 2, 2]]
    assert sorted(set(rollouts.problem[rows])) == ["p2", "p3"]


def test_speed_counts_the_groups_that_wait():
    problems = list(pool_of(6))
    outcomes = {f"p{i}": "0000" if i < 2 else "0101" for i in range(6)}
    screening = allocators.Screening(2, 2, groups=2)
    finished = table(a="0101", b="0101", c="0101", d="00")
    screening.feedback(finished.assign(selected=finished.problem == "a"), HERE)
    assert screening.waiting == 2
    requests, _, _ = drive(screening, problems[:2], outcomes, problems[2:])
    assert requests == [[2, 2]], "two wait, so no further problems are screened"
    requests, _, _ = drive(screening, problems[2:], outcomes)
    assert requests == [[2] * 4, [2, 2, 0, 0]], "two of four are enough for the next round"
    # Without a number of groups nothing waits.
    alone = allocators.Screening(2, 2)
    alone.feedback(finished.assign(selected=finished.problem == "a"), HERE)
    requests, _, _ = drive(alone, problems[2:], outcomes)
    assert requests == [[2] * 4, [2] * 4]


def test_speed_surplus_waits_in_order_and_is_bounded(policy):
    """Two groups a round are trained on; of five more the newest two wait."""
    slot = replay.Surplus(groups=2, capacity=2)
    sampling = wb.policies.Sampling(max_new_tokens=4)

    def sampled(names, number):
        problems = [Problem(name, "1+2=", "3") for name in names]
        rollouts = policy.generate(problems, [1] * len(names), sampling, seed=number)
        size = len(names)
        return rollouts.assign(
            round=np.full(size, number), gradient=np.ones(size, bool), uses=np.zeros(size, int)
        )

    first, rows = slot.join(sampled("abcde", 1), np.arange(5), Context(round=1, policy=policy))
    assert first.problem[rows].tolist() == ["a", "b"]
    assert slot.stored.problem.tolist() == ["d", "e"]
    second, rows = slot.join(sampled("f", 2), np.arange(1), Context(round=2, policy=policy))
    assert second.problem[rows].tolist() == ["d", "e"]
    assert slot.stored.problem.tolist() == ["f"]


# Pilot-Commit (arXiv 2605.26606)


@pytest.mark.parametrize("pilots, least, most", [(32, 4, 24), (16, 2, 12)])
def test_pilots_fit_from_one_bound_to_the_other(pilots, least, most):
    """The published chances to fit, and what a trained group of 32 + 96 costs."""
    allocator = allocators.PilotCommit(pilots, 1, groups=pilots, max_draws=1)
    problems = list(pool_of(pilots + 1))
    outcomes = {f"p{c}": "1" * c + "0" * (pilots + 1 - c) for c in range(pilots + 1)}
    requests, rollouts, rows = drive(allocator, problems, outcomes)
    fitting = list(range(least, most + 1))
    assert np.flatnonzero(requests[1]).tolist() == fitting
    assert set(rollouts.problem[rows]) == {f"p{c}" for c in fitting}
    if pilots == 16:
        return
    chance = {p: sum(binomial(32, p)[least : most + 1]) for p in (0.5, 0.75, 0.1, 0.9, 0.02)}
    expected = {0.5: 0.9989, 0.75: 0.5675, 0.1: 0.3997, 0.9: 0.0117}
    assert {p: chance[p] for p in expected} == pytest.approx(expected, abs=5e-5)
    assert 32 / (chance[0.5] / 2) + 96 == pytest.approx(160.1, abs=0.05)
    assert 32 / ((chance[0.02] + chance[0.5]) / 2) + 96 == pytest.approx(159.8, abs=0.05)
    mixed = nonzero_gradient_probability(128, np.array([0, 0.5, 0.02]))
    assert 128 / mixed[:2].mean() == pytest.approx(256.0, abs=0.05)
    assert 128 / mixed[1:].mean() == pytest.approx(133.0, abs=0.05)


def test_pilot_commit_draws_until_there_are_enough_with_those_that_wait():
    problems = list(pool_of(6))
    outcomes = {f"p{i}": "0000" if i < 2 else "0101" for i in range(6)}
    allocator = allocators.PilotCommit(2, 2, groups=2)
    requests, _, _ = drive(allocator, problems[:2], outcomes, problems[2:])
    assert requests == [[2, 2], [0, 0, 2, 2], [0, 0, 2, 2]]
    # Of three whole groups one was not trained on; a pilot alone does not wait.
    finished = table(a="0101", b="0101", c="0101", d="00")
    selected = finished.problem == "a"
    allocator.feedback(finished.assign(selected=selected), HERE)
    assert allocator.waiting == 2
    requests, _, _ = drive(allocator, problems[:2], outcomes, problems[2:])
    assert requests == [[2, 2]], "two wait, so no further problems are drawn"
    requests, _, _ = drive(allocator, problems[2:], outcomes)
    assert requests == [[2] * 4, [2, 2, 0, 0]], "two of four are enough for the next round"
    resumed = allocator.clone()
    resumed.load_state_dict(allocator.state_dict())
    assert resumed.waiting == 2


def test_surplus_drops_groups_that_are_too_old(policy):
    slot = replay.Surplus(groups=1, age=2)
    three = [answer(policy, Problem(name, "1+2=", "3"), 1, 2) for name in "abc"]
    _, rows = slot.join(Rollouts.concat(three), np.arange(6), Context(round=1, policy=policy))
    assert rows.tolist() == [0, 1]
    later = answer(policy, Problem("d", "1+2=", "3"), 1, 2, number=4)
    fresh = slot.clone()
    fresh.load_state_dict(slot.state_dict())
    for joined, number, trained in [(slot, 3, "b"), (fresh, 4, "d")]:
        new = later.assign(round=np.full(2, number))
        rollouts, rows = joined.join(new, np.arange(2), Context(round=number, policy=policy))
        assert set(rollouts.problem[rows]) == {trained}


def test_surplus_bears_a_round_in_which_nothing_was_scored(policy):
    slot = replay.Surplus(groups=1)
    three = [answer(policy, Problem(name, "1+2=", "3"), 1, 2, number=1) for name in "abc"]
    slot.join(Rollouts.concat(three), np.arange(6), Context(round=1, policy=policy))
    nothing = three[0].take(np.arange(0))
    joined, rows = slot.join(nothing, np.arange(0), Context(round=2, policy=policy))
    assert set(joined.problem[rows]) == {"b"}


def test_solved_problems_leave_and_come_back_once_too_few_are_left():
    curriculum = curricula.WithoutSolved()
    pool = pool_of(4)
    curriculum.feedback(table(p0="11", p1="10", p2="111"), HERE)
    assert curriculum.metrics() == {"problems_left_out": 2}
    for number in range(1, 6):
        chosen = curriculum.choose(pool, 2, Context(round=number))
        assert {problem.id for problem in chosen} == {"p1", "p3"}
    more = curriculum.choose(pool, 1, Context(round=6, taken=frozenset({"p1", "p3"})))
    assert more == []
    more = curriculum.choose(pool, 2, Context(round=6, taken=frozenset({"p1"})))
    assert [problem.id for problem in more] == ["p3"]
    assert len(curriculum.choose(pool, 3, Context(round=7))) == 3
    assert not curriculum.left


@pytest.mark.slow
def test_pilot_commit_trains_and_bounds_what_waits(tmp_path):
    """A run in the lab: no more groups than wanted, and only those with pilots that fit."""
    lab = wb.labs.tiny(base="late", pool=24, held_out=0)
    method = wb.methods.pilot_commit(4, 4, groups=4).adjust("allocator", between=(0.2, 0.8))
    run = wb.Run(lab, method, out=tmp_path, problems_per_round=8, evaluate_every=0)
    go(run, 4)
    for number in range(1, 5):
        rows = run.record.rollouts([number]).query("selected")
        sizes = rows.groupby(["problem", "age"]).size()
        assert 0 < len(sizes) <= 4 and (sizes == 8).all()
        assert (rows["age"] <= 4).all()


# MoPPS (arXiv 2507.04632) and MaPP (arXiv 2609.34990): problems by a posterior


def test_decay_goes_to_the_prior_or_to_zero():
    """Beta(1, 1), decay .5, 2 of 8 right: the first visit is the same, the second is not."""
    to_prior = Posteriors(decay=0.5)
    to_zero = Posteriors(decay=0.5, towards="zero")
    for belief, first, second in [(to_prior, [3, 7], [4, 10]), (to_zero, [2.5, 6.5], None)]:
        belief.observe(["a"], np.array([2]), np.array([8]))
        assert belief.of(["a"])[0].tolist() == first
        if second:
            belief.observe(["a"], np.array([2]), np.array([8]))
            assert belief.of(["a"])[0].tolist() == second
    assert to_prior.means(["a", "b"]) == pytest.approx([4 / 14, 1 / 2])
    a, b = 3, 7
    assert a * b / (a + b) ** 2 / (a + b + 1) == pytest.approx(0.0191, abs=5e-5)


def test_beliefs_start_afresh_after_so_many_rounds():
    belief = Posteriors(restart=2)
    believed = []
    for number in range(1, 5):
        belief.feedback(table(a="11", round=number), Context(round=number))
        believed.append(belief.means(["a"])[0])
    assert believed == [3 / 4, 1 / 2, 3 / 4, 1 / 2]


def test_mopps_takes_the_problem_whose_drawn_rate_is_nearest_to_one_half():
    mopps = curricula.Mopps(factor=3)
    right = np.array([4999, 8999, 999])
    mopps.posteriors.observe(["p0", "p1", "p2"], right, np.full(3, 9998))
    for seed in range(20):
        chosen = mopps.clone()
        chosen.posteriors = mopps.posteriors
        [problem] = chosen.choose(pool_of(3), 1, Context(seed=seed, round=1))
        assert problem.id == "p0"


def test_mopps_interval_draws_among_those_inside():
    mopps = curricula.Mopps(factor=3, interval=(0.3, 0.7))
    right = np.array([3999, 5999, 9500])
    mopps.posteriors.observe(["p0", "p1", "p2"], right, np.full(3, 9998))
    seen = set()
    for seed in range(20):
        chosen = mopps.clone()
        chosen.posteriors = mopps.posteriors
        seen |= {problem.id for problem in chosen.choose(pool_of(3), 1, Context(seed=seed))}
    assert seen == {"p0", "p1"}


@pytest.mark.parametrize("curriculum", [curricula.Mopps(), curricula.Mapp()])
def test_the_last_problems_of_a_pool_may_be_fewer_than_a_draw_asks_for(curriculum):
    """A second draw of a round finds one problem left."""
    chosen = curriculum.clone().choose(
        pool_of(3), 2, Context(round=1, taken=frozenset(["p0", "p2"]))
    )
    assert [problem.id for problem in chosen] == ["p1"]


def test_mapp_scores_are_predicted_chances_of_a_mixed_group():
    assert mixed_group_probability(1, 1, 8) == pytest.approx(7 / 9)
    assert mixed_group_probability(3, 7, 8) == pytest.approx(0.8746, abs=5e-5)
    assert nonzero_gradient_probability(8, 0.3) == pytest.approx(0.9423, abs=5e-5)
    assert mixed_group_probability(9, 1, 8) == pytest.approx(0.4705, abs=5e-5)


def test_mapp_advantages_by_hand():
    """One of four right; none of four right; two of eight right. A dead group is not silent."""
    mapp = advantages.Marginalized(decay=0.5)
    assert mapp(table(a="1000"), HERE)[:2] == pytest.approx([1.3414, -0.6530], abs=5e-5)
    assert mapp(table(a="0000"), HERE) == pytest.approx([-0.3287] * 4, abs=5e-5)
    assert mapp(table(a="11000000"), HERE)[1:3] == pytest.approx([1.6800, -0.6478], abs=5e-5)
    assert group_normalized([1, 0, 0, 0], ["a"] * 4)[:2] == pytest.approx(
        [1.7321, -0.5774], abs=5e-5
    )


@given(st.floats(0.1, 50), st.floats(0.1, 50), st.integers(2, 8))
def test_mapp_is_the_average_of_grpo_over_what_the_others_could_have_been(a, b, n):
    """Brute force over the number of right ones among the other n - 1."""
    from scipy.stats import betabinom

    expected = 0.0
    for others in range(n):
        rewards = np.array([1.0] + [1.0] * others + [0.0] * (n - 1 - others))
        expected += betabinom.pmf(others, n - 1, a, b) * group_normalized(rewards, ["a"] * n)[0]
    assert advantages.marginal_advantages([a], [b], [n])[0] == pytest.approx(expected, abs=1e-9)


# DPS (arXiv 2603.10887)


def test_dps_counts_a_transition_into_what_a_visit_shows():
    """Uniform at first; after a mixed group .3, .4, .3. Then by hand, with a decay of .5."""
    dps = curricula.Dps(decay=0.5)
    assert dps.predicted(["a"])[0] == pytest.approx([1 / 3] * 3)
    dps.feedback(table(a="10"), HERE)
    assert dps.predicted(["a"])[0] == pytest.approx([0.3, 0.4, 0.3])
    # From mixed to all right: that one transition is counted, and 4/3 has decayed to 7/6.
    dps.feedback(table(a="11", round=2), Context(round=2))
    assert dps.memory["a"][0].tolist() == [0, 0, 1]
    assert dps.memory["a"][2] == pytest.approx([1, 7 / 6, 2])
    assert dps.predicted(["a"])[0] == pytest.approx(np.array([1, 7 / 6, 1]) / (19 / 6))


def test_dps_lets_problems_move_on_while_they_are_not_visited():
    dps = curricula.Dps()
    dps.feedback(table(a="00"), HERE)
    dps.memory["a"][1:] = [[0.8, 0.2, 1e-9], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]]
    dps.feedback(table(b="01", round=2), Context(round=2))
    assert dps.memory["a"][0] == pytest.approx([0.8, 0.2, 0], abs=1e-6)
    # The counts have decayed too: .7 of what they were and .3 of the prior, which is 1.
    assert dps.memory["a"][1:] == pytest.approx(
        np.array([[0.86, 0.44, 0.3], [0.51, 0.58, 0.51], [0.44, 0.51, 0.65]]), abs=1e-6
    )
    assert dps.predicted(["a"])[0] == pytest.approx([0.49375, 0.2925, 0.21375], abs=1e-6)


def test_dps_takes_mixed_problems_then_new_ones_then_all_others():
    dps = curricula.Dps()
    pool = pool_of(6)
    first = [problem.id for problem in dps.choose(pool, 6, HERE)]
    assert first == [pool[i].id for i in pool.order(0, 0)], "new ones in the order of an epoch"
    dps.feedback(table(p0="01", p1="00", p2="11", p3="10"), HERE)
    taken = [{problem.id for problem in dps.choose(pool, n, Context(round=2))} for n in (2, 4)]
    assert taken == [{"p0", "p3"}, {"p0", "p3", "p4", "p5"}]
    with pytest.raises(ValueError, match="n=7"):
        dps.choose(pool, 7, Context(round=2))


# CurES (arXiv 2510.01037)


def test_cures_counts_and_weights_of_problems():
    deviation = np.sqrt(np.array([0.1, 0.5, 0.9]) * np.array([0.9, 0.5, 0.1]))
    assert deviation == pytest.approx([0.3, 0.5, 0.3])
    assert in_proportion(deviation, 24, 2, 64).tolist() == [7, 11, 6]  # 6.545, 10.909, 6.545

    by_deviation = allocators.ByDeviation(8)
    # Under the prior Beta(1, 1) the rates are .1, .5 and .9.
    by_deviation.posteriors.observe(["a", "b", "c"], np.array([0, 4, 8]), np.full(3, 8))
    assert by_deviation._weights(["a", "b", "c"]) == pytest.approx(deviation)

    cures = curricula.Cures(temperature=0.1)
    ids = ["a", "b", "c"]
    cures.posteriors.counts = dict(zip(ids, [(1.0, 9.0), (5.0, 5.0), (9.0, 1.0)]))
    weights = cures.weights(ids)
    assert weights / weights.sum() == pytest.approx([0.1065, 0.7870, 0.1065], abs=5e-5)


def test_cures_weights_of_the_released_code_are_nearly_uniform():
    """c of 4 right: the largest and the smallest weight differ by 0.3 percent at most."""
    cures = curricula.Cures(form="code")
    ids = [str(c) for c in range(5)]
    cures.posteriors.observe(ids, np.arange(5), np.full(5, 4))
    weights = cures.weights(ids)
    assert 1.002 < weights.max() / weights.min() < 1.0035
    # Estimates are those of Laplace, (c + 1) / 6.
    p = np.arange(1, 6) / 6
    by_hand = np.exp(0.01 * np.sqrt(p * (1 - p)) / np.arange(1, 6))
    assert weights / weights[0] == pytest.approx(by_hand / by_hand[0], rel=1e-9)


def test_a_problem_leaves_the_pool_once_all_of_its_answers_are_right():
    rollouts = table(a="11", b="10", c="00")
    for solved, gone in ((1.0, {"a"}), (0.5, {"a", "b"})):
        curriculum = curricula.WithoutSolved(solved=solved)
        curriculum.feedback(rollouts, HERE)
        assert curriculum.left == gone
    # 0.56 * 25 is a little more than 14 in floating point.
    curriculum = curricula.WithoutSolved(solved=0.56)
    curriculum.feedback(table(a="1" * 14 + "0" * 11, b="1" * 13 + "0" * 12), HERE)
    assert curriculum.left == {"a"}


def test_problems_that_have_left_come_back_only_where_too_few_are_there():
    curriculum = curricula.WithoutSolved()
    curriculum.left = {"p0"}
    chosen = curriculum.choose(pool_of(3), 2, HERE)
    assert {problem.id for problem in chosen} == {"p1", "p2"} and curriculum.left == {"p0"}
    assert len(curriculum.choose(pool_of(3), 3, Context(round=2))) == 3
    assert curriculum.left == set()


def test_a_problem_of_weight_0_is_drawn_only_when_no_others_are_left():
    weights = np.array([0.0, 1.0, 1e-6])
    rng = np.random.default_rng(0)
    drawn = [curricula.draw_by_weight(weights, 2, rng) for _ in range(20)]
    assert {tuple(pair.tolist()) for pair in drawn} == {(1, 2)}
    assert curricula.draw_by_weight(weights, 3, rng).tolist() == [0, 1, 2]


def test_mapp_prefers_problems_whose_groups_are_likely_mixed():
    mapp = curricula.Mapp(factor=2)
    mapp.posteriors.observe(["p0", "p1"], np.array([500_000, 1_000_000]), np.full(2, 1_000_000))
    for seed in range(20):
        chosen = mapp.clone()
        chosen.posteriors = mapp.posteriors
        [problem] = chosen.choose(pool_of(2), 1, Context(seed=seed, round=1))
        assert problem.id == "p0"


# HORA (arXiv 2605.07114)


def test_hora_by_hand_and_by_brute_force():
    a, b = np.array([1.0, 3.0, 5.0]), np.array([5.0, 3.0, 1.0])
    counts = by_hit_utility(a, b, total=6, up=8)
    assert counts.tolist() == [2, 2, 2]

    def utility(counts):
        """Expected number of problems hit: 1 - E[(1 - p)^m] each."""
        missed = [
            math.prod((b[i] + j) / (a[i] + b[i] + j) for j in range(m))
            for i, m in enumerate(counts)
        ]
        return 3 - sum(missed)

    splits = [(x, y, 6 - x - y) for x in range(7) for y in range(7 - x)]
    assert len(splits) == 28
    assert utility(counts) == pytest.approx(1.9524, abs=5e-5)
    assert utility(counts) == pytest.approx(max(map(utility, splits)))


def test_hora_gives_a_solved_problem_its_first_further_rollout_first():
    """The order of gains is 5/6, 1/2, 3/14, 1/6, 5/42, and a tie at 5/42 goes to the first."""
    a, b = np.array([1.0, 3.0, 5.0]), np.array([5.0, 3.0, 1.0])
    splits = [by_hit_utility(a, b, total, up=8).tolist() for total in range(1, 6)]
    assert splits == [[0, 0, 1], [0, 1, 1], [0, 2, 1], [1, 2, 1], [2, 2, 1]]


def test_hora_probes_and_then_splits():
    requests, _, _ = drive(
        allocators.HitUtility(n=6, probe=4),
        pool_of(3),
        {"p0": "0" * 12, "p1": "0011" + "0" * 8, "p2": "1" * 12},
    )
    assert requests == [[4, 4, 4], [2, 2, 2]]


def test_hora_counts_the_probes_within_the_bound_of_a_problem():
    """Gains of 6 further rollouts: 1/4, .15, .1, .071 without a right one of 2; 3/4, .15, .05."""
    outcomes = {"p0": "0" * 8, "p1": "1" * 8}
    for up, split in ((6, [4, 2]), (5, [3, 3])):
        allocator = allocators.HitUtility(n=5, probe=2, up=up)
        requests, _, _ = drive(allocator, pool_of(2), outcomes)
        assert requests == [[2, 2], split]


# VIP (arXiv 2602.01601)


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.inf])
def test_rates_outside_zero_and_one_are_refused(rate):
    with pytest.raises(ValueError, match=r"p=.*\[0, 1\]"):
        by_variance([rate, 0.5], 8)
    with pytest.raises(ValueError, match=r"p=.*\[0, 1\]"):
        nonzero_gradient_probability(8, rate)


@pytest.mark.parametrize(
    "p, total, estimator, expected",
    [
        ((0.1, 0.5, 0.9, 0.5), 32, "rloo", [6, 10, 6, 10]),
        ((0.05, 0.5), 16, "rloo", [5, 11]),
        ((0.05, 0.5), 16, "dr_grpo", [4, 12]),
        ((0.3, 0.3, 0.3), 24, "rloo", [8, 8, 8]),
        ((np.nan, 0.3, 0.9), 24, "rloo", by_variance([0.5, 0.3, 0.9], 24, low=3).tolist()),
    ],
)
def test_vip_is_the_best_of_all_splits(p, total, estimator, expected):
    counts = by_variance(p, total, low=3, up=total, estimator=estimator)
    assert counts.tolist() == expected

    p = np.nan_to_num(p, nan=0.5)

    def variance(split):
        n = np.array(split)
        shape = 1 / (n - 1) if estimator == "rloo" else (n - 1) / n**2
        return (np.array(p) * (1 - np.array(p)) * shape).sum()

    heads = itertools.product(range(3, total), repeat=len(p) - 1)
    splits = [(*head, total - sum(head)) for head in heads if total - sum(head) >= 3]
    assert variance(counts) == pytest.approx(min(map(variance, splits)))


def test_vip_gives_ties_of_mirrored_rates_to_the_lower_index():
    # Posterior means of none and of all right among 16; of none and of all right among 4.
    for rates in ([1 / 18, 17 / 18], [17 / 18, 1 / 18], [5 / 6, 1 / 6], [1 / 6, 5 / 6]):
        for total in (9, 11, 13, 25):
            for estimator in ("rloo", "dr_grpo"):
                counts = by_variance(rates, total, low=3, estimator=estimator)
                assert counts.tolist() == [total // 2 + 1, total // 2]


# CPPO (arXiv 2503.22342)


def test_cppo_keeps_the_rare_outcome_first():
    """Groups of 8 with 1 and 4 right: |A| is 2.474 and .353, and .935 all through."""
    rollouts = table(a="10000000", b="11110000")
    method = wb.methods.cppo(8)
    advantage = method.advantage(rollouts, HERE)
    assert np.abs(advantage[[0, 1, 8, 15]]) == pytest.approx([2.474, 0.353, 0.935, 0.935], abs=1e-3)
    rollouts = rollouts.assign(advantage=advantage)

    per_group = method.selector.select(rollouts, HERE)
    assert per_group.rows.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert per_group.baseline == "group"  # advantages are not taken anew
    of_batch = selectors.LargestAdvantage(0.5, "batch").select(rollouts, HERE).rows
    assert of_batch.tolist() == [0, 8, 9, 10, 11, 12, 13, 14]
    # The rarer outcome of both groups has the same |A| but for rounding.
    for marks in (("100", "110"), ("110", "100"), ("110000", "111100")):
        rollouts = table(a=marks[0], b=marks[1])
        rollouts = rollouts.assign(advantage=method.advantage(rollouts, HERE))
        keep_one = selectors.LargestAdvantage(1 - 1 / len(rollouts), "batch")
        rare = "0" if marks[0].count("1") * 2 > len(marks[0]) else "1"
        assert keep_one.select(rollouts, HERE).rows.tolist() == [marks[0].index(rare)]


@pytest.mark.parametrize("drop, kept", [(0.5, 8), (0.875, 2), (0.9375, 1)])
def test_cppo_sizes(drop, kept):
    rollouts = table(a="1" * 5 + "0" * 11).assign(advantage=np.arange(16.0))
    rows = selectors.LargestAdvantage(drop).select(rollouts, HERE).rows
    assert rows.tolist() == list(range(16 - kept, 16))


@pytest.mark.slow
@pytest.mark.parametrize("drop, problems", [(0.5, 16), (0.875, 64)])
def test_cppo_trains_on_as_many_rollouts_as_grpo(tmp_path, drop, problems):
    """The questions are multiplied by 1 / (1 - P), the dynamic allocation of the text."""
    method = wb.methods.cppo(8, drop)
    run = wb.Run(small_lab(pool=64), method, out=tmp_path, problems_per_round=8, evaluate_every=0)
    [row] = go(run, 1)
    assert row["problems"] == problems
    assert row["rollouts"] == 8 * problems
    assert row["selected"] == 64
    assert wb.methods.cppo(8, drop, dynamic_allocation=False).allocator == allocators.Uniform(8)
    with pytest.raises(ValueError, match="factor"):
        allocators.Widened(8, 0.5)


# RAGEN-2 (arXiv 2604.06268)


@pytest.mark.parametrize(
    "value, expected", [(0.9, [0, 1, 2]), (0.8, [0, 1]), (0.7, [0, 1]), (1.0, [0, 1, 2])]
)
def test_ragen_keeps_the_shortest_prefix(value, expected):
    scores = np.array([0.5, 0.3, 0.2, 0.0])
    kept = selectors.GroupFilter(value=value, score="variance", zeros=True).kept(scores)
    assert np.flatnonzero(kept).tolist() == expected


def test_ragen_of_eight_groups():
    """Standard deviations are at most about .52, so their softmax is nearly uniform."""
    right = (8, 4, 1, 0, 0, 0, 16, 16)
    marks = {f"g{i}": "1" * c + "0" * (16 - c) for i, c in enumerate(right)}
    rollouts = table(**marks)
    linear = selectors.GroupFilter().select(rollouts, HERE).rows
    assert sorted(set(rollouts.problem[linear])) == ["g0", "g1", "g2"]
    softmax = selectors.GroupFilter("softmax", zeros=True).select(rollouts, HERE).rows
    assert len(softmax) == len(rollouts)
    top = selectors.GroupFilter("top_k", 0.25).select(rollouts, HERE).rows
    assert sorted(set(rollouts.problem[top])) == ["g0", "g1"]
    least = selectors.GroupFilter("min_p", 0.9).select(rollouts, HERE).rows
    assert sorted(set(rollouts.problem[least])) == ["g0"]


def test_ragen_takes_a_bound_that_is_met_but_for_rounding():
    # Variances of 8 rewards with 2 and 3 right are as 12 to 15, which is 0.8.
    rollouts = table(a="11000000", b="11100000", c="10000000")
    rows = selectors.GroupFilter("min_p", 0.8, "variance").select(rollouts, HERE).rows
    assert sorted(set(rollouts.problem[rows])) == ["a", "b"]
    # 0.29 * 100 is a little less than 29.
    assert selectors.GroupFilter("top_k", 0.29).kept(np.arange(100.0)).sum() == 29


def test_ragen_of_dead_groups_alone_keeps_none():
    rollouts = table(a="000", b="111")
    for zeros in (False, True):
        assert len(selectors.GroupFilter(zeros=zeros).select(rollouts, HERE).rows) == 0


# Unbiased pruning (arXiv 2603.04135)


class Coins:
    """A context whose selector meets one given outcome of every coin."""

    def __init__(self, kept):
        self.kept = np.array(kept)

    def rng(self, *purpose):
        return self

    def random(self, size):
        return np.where(self.kept, 0.0, 1.0 - 1e-12)


def test_pruning_is_unbiased_over_all_masks():
    """Values (2, -1, 3), kept with .5, .8 and .25: mean 4/3 and variance 3.4722 over 8 masks."""
    values = np.array([2.0, -1.0, 3.0])
    keep = np.array([0.5, 0.8, 0.25])
    rollouts = table(a="101").assign(keep=keep)
    chances = []
    estimates = []
    for mask in itertools.product([False, True], repeat=3):
        selection = selectors.Pruned("keep").select(rollouts, Coins(mask))
        assert selection.rows.tolist() == [0, 1, 2]
        chances.append(np.prod(np.where(mask, keep, 1 - keep)))
        estimates.append((selection.weights * values).mean())
    chances, estimates = np.array(chances), np.array(estimates)
    mean = (chances * estimates).sum()
    assert mean == pytest.approx(4 / 3)
    assert (chances * (estimates - mean) ** 2).sum() == pytest.approx(3.4722, abs=5e-5)


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(0.05, 1)), min_size=1, max_size=5),
)
def test_pruning_is_unbiased_whatever_the_probabilities(pairs):
    values, keep = np.array(pairs).T
    rollouts = table(a="1" * len(pairs)).assign(keep=keep)
    mean = 0.0
    for mask in itertools.product([False, True], repeat=len(pairs)):
        weights = selectors.Pruned("keep").select(rollouts, Coins(mask)).weights
        mean += np.prod(np.where(mask, keep, 1 - keep)) * (weights * values).mean()
    assert mean == pytest.approx(values.mean(), abs=1e-9)


@pytest.mark.parametrize("keep", [[0.0, 1.0], [-0.1, 0.5], [1.5, 1.0], [np.nan, 1.0]])
def test_pruning_refuses_probabilities_outside(keep):
    with pytest.raises(ValueError, match="keep='keep': probabilities above 0"):
        selectors.Pruned("keep").select(table(a="10").assign(keep=keep), HERE)


# Asymmetric prompt weighting (arXiv 2602.11128)


@pytest.mark.parametrize(
    "marks, weighting, right, wrong",
    [
        ("1000", "linear", 3, -1),
        ("1000", "sqrt", 3.464, -1.155),
        ("1110", "linear", 0.333, -1),
        ("1110", "sqrt", 0.667, -2),
    ],
)
def test_asymmetric_weighting_by_hand(marks, weighting, right, wrong):
    advantage = advantages.Asymmetric(weighting)(table(a=marks), HERE)
    assert advantage[[0, 3]] == pytest.approx([right, wrong], abs=5e-4)
    assert advantage.sum() == pytest.approx(0)


def test_asymmetric_weighting_of_dead_groups():
    """With no right response Linear-R pushes all of them down, Sqrt-R is silent."""
    rollouts = table(a="000", b="111")
    linear = advantages.Asymmetric("linear")(rollouts, HERE)
    assert linear.tolist() == [-1, -1, -1, 0, 0, 0]
    assert not advantages.Asymmetric("sqrt")(rollouts, HERE).any()


# GDPO (arXiv 2601.05242)


def test_gdpo_normalises_each_part_before_it_sums():
    """Parts (1, 0, 0, 0) and (1, 1, 0, 0) sum to 2.366, .366 and -1.366 twice."""
    parts = np.array([[1, 1], [0, 1], [0, 0], [0, 0]], float)
    sums = np.array([2.366, 0.366, -1.366, -1.366])
    found = advantages.parts_normalized(parts, ["a"] * 4)
    assert found == pytest.approx(sums / sums.std(ddof=1), abs=1e-3)
    # A second group, all alike, has zero and is a part of the batch.
    both = advantages.parts_normalized(np.vstack([parts, np.ones((4, 2))]), ["a"] * 4 + ["b"] * 4)
    assert both[4:].tolist() == [0] * 4
    assert both[:4] == pytest.approx(sums / np.append(sums, [0] * 4).std(ddof=1), abs=1e-3)
    # A weight is one of the normalised part, so the scale of a part does not matter.
    weighted = advantages.parts_normalized(parts * [1, 10], ["a"] * 4, weights=[1, 0.5])
    half = np.array([1.5, -0.5, -0.5, -0.5]) + np.array([1, 1, -1, -1]) * 0.75**0.5 / 2
    assert weighted == pytest.approx(half / half.std(ddof=1))
    with pytest.raises(ValueError, match="weights"):
        advantages.parts_normalized(parts, ["a"] * 4, weights=[1.0])


def test_gdpo_has_no_signal_where_its_parts_are_opposites():
    """The only right response is the only one that is too long: the parts cancel to 1e-16."""
    parts = [[1, 0], [0, 1], [0, 1]]
    assert advantages.parts_normalized(parts, ["a"] * 3).tolist() == [0.0] * 3


def test_gdpo_reads_the_parts_of_the_method(tmp_path):
    parts = (wb.rewards.Correct(), wb.rewards.Overlong(weight=0.5))
    method = wb.methods.gdpo(4, reward=parts)
    rollouts = table(a="1000").assign(
        reward_correct=np.array([1.0, 0, 0, 0]), reward_overlong=np.array([0.0, 0, -1, -1])
    )
    columns = [rollouts["reward_correct"], rollouts["reward_overlong"]]
    expected = advantages.parts_normalized(np.stack(columns, 1), ["a"] * 4, weights=[1, 0.5])
    assert method.advantage(rollouts, HERE) == pytest.approx(expected)
    with pytest.raises(ValueError, match="advantage="):
        method.but(reward=(wb.rewards.Correct(),))
    with pytest.raises(ValueError, match="reward="):
        wb.methods.gdpo(reward=())


# MaxRL (arXiv 2602.02710)


def test_maxrl_by_hand():
    slot = advantages.MaxRL()
    assert slot(table(a="1000"), HERE).tolist() == [3, -1, -1, -1]
    sums = [np.abs(slot(table(a="1" * k + "0" * (8 - k)), HERE)).sum() for k in (1, 2, 4, 7)]
    assert sums == pytest.approx([14, 12, 8, 2])


def test_maxrl_is_silent_where_all_rewards_are_equal():
    """Also in a group of one, which the released code gives a million, and for rewards like .1."""
    assert not advantages.MaxRL()(table(a="0000", b="1111", c="1"), HERE).any()
    assert not advantages.maxrl([0.1] * 3, ["a"] * 3).any()
    assert advantages.maxrl([0, 0, 1], [0, 0, 1], all_wrong="minus_one").tolist() == [-1, -1, 0]
    with pytest.raises(ValueError, match=r"rewards: 2\.0"):
        advantages.maxrl([0, 2], ["a", "a"])


@pytest.mark.parametrize("all_wrong, factor", [("zero", 2.3125), ("minus_one", 2.734375)])
def test_maxrl_is_a_cut_off_gradient_of_the_logarithm(all_wrong, factor):
    """In expectation over all groups of 4 at p = .25; the gradient of log p would be 4."""
    p = 0.25
    total = 0.0
    for chance, right in zip(binomial(4, p), range(5)):
        rewards = np.array([1.0] * right + [0.0] * (4 - right))
        # How the log-likelihood of an outcome changes with p.
        scores = np.where(rewards == 1, 1 / p, -1 / (1 - p))
        advantage = advantages.maxrl(rewards, ["a"] * 4, all_wrong=all_wrong)
        total += chance * np.mean(advantage * scores)
    assert total == pytest.approx(factor)


# Pass@k training (arXiv 2508.10751) and PKPO (arXiv 2505.15201)


@pytest.mark.parametrize(
    "n, c, k, right, wrong",
    [(4, 1, 2, 1, -1 / 3), (8, 2, 4, 0.5222, -0.1741), (8, 2, 1, 1.7321, -0.5774), (8, 6, 4, 0, 0)],
)
def test_pass_at_k_by_hand(n, c, k, right, wrong):
    rewards = [1] * c + [0] * (n - c)
    advantage = pass_at_k_normalized(rewards, ["a"] * n, k=k)
    assert advantage[[0, -1]] == pytest.approx([right, wrong], abs=5e-5)
    assert advantage.sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=2, max_size=7), st.data())
def test_pass_at_k_is_the_mean_over_the_subsets_that_hold_a_response(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    rewards = np.array(outcomes, float)
    subsets = list(itertools.combinations(range(len(rewards)), k))
    best = {subset: rewards[list(subset)].max() for subset in subsets}
    mean = np.mean(list(best.values()))
    deviation = math.sqrt(mean * (1 - mean))
    advantage = pass_at_k_normalized(rewards, ["a"] * len(rewards), k=k)
    if deviation < 1e-9:
        assert not advantage.any()
        return
    for i, value in enumerate(advantage):
        of_i = [(best[subset] - mean) / deviation for subset in subsets if i in subset]
        assert value == pytest.approx(np.mean(of_i), abs=1e-9)


def test_groups_without_any_set_of_k_are_refused():
    """Pass@k compares the sets of k with one another, and of n = k there is one."""
    for make, n, k in ((wb.methods.pass_at_k, 4, 4), (wb.methods.pkpo, 4, 5)):
        with pytest.raises(ValueError, match=f"k={k}: a whole number from 1 to {k - 1} is needed"):
            make(n, k)
        assert make(n, k - 1).advantage.k == k - 1


def test_pkpo_by_hand():
    assert pkpo([0, 0, 0, 1], ["a"] * 4, k=2, baseline="none") == pytest.approx(
        [1 / 6, 1 / 6, 1 / 6, 1 / 2]
    )
    assert pkpo([0, 0, 0, 1], ["a"] * 4, k=2) == pytest.approx([0, 0, 0, 1 / 2])
    assert pkpo([0, 1, 3, 7], ["a"] * 4, k=2, baseline="none") == pytest.approx(
        [11 / 6, 11 / 6, 13 / 6, 7 / 2]
    )
    assert pkpo([0, 1, 3, 7], ["a"] * 4, k=2) == pytest.approx([0, 1 / 6, 5 / 6, 17 / 6])
    rewards = [1, 1] + [0] * 6
    mapped = pkpo(rewards, ["a"] * 8, k=4, baseline="none")
    assert mapped[[0, -1]] == pytest.approx([1 / 2, 5 / 14])
    assert mapped.sum() == pytest.approx(22 / 7)  # k times pass@4, which is 11/14
    assert pkpo(rewards, ["a"] * 8, k=4)[[0, -1]] == pytest.approx([2 / 7, 0])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=6), st.data())
def test_pkpo_is_the_sum_over_subsets(rewards, data):
    n = len(rewards)
    k = data.draw(st.integers(1, n))
    mapped = pkpo(rewards, ["a"] * n, k=k, baseline="none")
    without = pkpo(rewards, ["a"] * n, k=k)
    for i in range(n):
        with_i = [s for s in itertools.combinations(range(n), k) if i in s]
        best = [max(rewards[j] for j in subset) for subset in with_i]
        assert mapped[i] == pytest.approx(sum(best) / comb(n, k))
        if k > 1:
            others = [max(rewards[j] for j in subset if j != i) for subset in with_i]
            expected = (sum(best) - sum(others)) / comb(n, k)
            assert without[i] == pytest.approx(expected, abs=1e-9)


# RL-ZVP (arXiv 2509.21880)


def test_rl_zvp_shapes_tokens_of_dead_groups_by_their_entropy():
    """H = .2, 1, .5: right .02, .1, .05; wrong -.08, 0, -.05; GRPO's advantage where mixed."""
    entropy = [0.2, 1.0, 0.5]
    rollouts = table(a="11", b="00", c="10").assign(
        response=Ragged.of([[1, 2, 3]] * 6, np.int32),
        token_entropy=Ragged.of([entropy] * 6, np.float32),
    )
    advantage = wb.methods.rl_zvp().advantage(rollouts, HERE)
    assert advantage[0] == pytest.approx([0.02, 0.1, 0.05])
    assert advantage[2] == pytest.approx([-0.08, 0, -0.05])
    assert advantage[4] == pytest.approx([1, 1, 1])
    assert advantage[5] == pytest.approx([-1, -1, -1])


def test_rl_zvp_without_entropies_says_so():
    rollouts = table(a="11").assign(response=Ragged.of([[1], [2]], np.int32))
    with pytest.raises(ValueError, match="needs the entropy of every response token"):
        wb.methods.rl_zvp().advantage(rollouts, HERE)


# The discounted Beta baseline (arXiv 2603.18444)


def test_discounted_beta_counts_the_group_itself():
    """Decay .5, n = 8. Nothing right: -.2425. Two right: 1.6125 and -.6202. Then eight right."""
    baseline = advantages.DiscountedBeta(0.5)
    assert baseline(table(a="00000000"), HERE) == pytest.approx([-0.2425] * 8, abs=5e-5)
    two = table(a="11000000")
    assert baseline(two, HERE)[1:3] == pytest.approx([1.6125, -0.6202], abs=5e-5)
    assert baseline(two, HERE)[1:3] == pytest.approx([1.6125, -0.6202], abs=5e-5)  # no state moved
    baseline.feedback(two, HERE)
    assert baseline.posteriors.of(["a"])[0].tolist() == [2.5, 6.5]
    later = table(a="11111111", round=2)
    assert baseline(later, Context(round=2)) == pytest.approx([0.5927] * 8, abs=5e-5)
    plain = advantages.DiscountedBeta(0.5, scale=False)
    assert plain(table(a="00000000"), HERE) == pytest.approx([-1 / 18] * 8)


@pytest.mark.parametrize("decay, weight", [(0.5, 8), (0.75, 24)])
def test_discounted_beta_remembers_a_steady_number_of_rollouts(decay, weight):
    baseline = advantages.DiscountedBeta(decay)
    for _ in range(200):
        baseline.feedback(table(a="11110000"), HERE)
    assert decay * baseline.posteriors.of(["a"]).sum() == pytest.approx(weight)


@pytest.mark.parametrize("marks", ["00000000", "11111111"])
def test_discounted_beta_stays_finite_for_a_problem_that_never_changes(marks):
    """After some fifty visits the mean rounds to 0 or 1, and its deviation to 0."""
    baseline = advantages.DiscountedBeta(0.5)
    for _ in range(1200):
        baseline.feedback(table(a=marks), HERE)
    advantage = baseline(table(a=marks), HERE)
    assert np.isfinite(advantage).all()
    assert np.abs(advantage).max() < 1e-6


# Replay: RLEP (2507.07451), plain replay (2604.08706), ExGRPO (2510.02245)


def answer(policy, problem, right, n, seed=0, number=1):
    """n sampled rollouts of a problem, the first `right` of them taken as right."""
    sampling = wb.policies.Sampling(max_new_tokens=4)
    rollouts = policy.generate([problem], [n], sampling, seed=seed)
    correct = np.arange(n) < right
    return rollouts.assign(
        correct=correct,
        reward=correct.astype(float),
        round=np.full(n, number),
        gradient=np.ones(n, bool),
        uses=np.zeros(n, int),
    )


@pytest.mark.parametrize("right, of_right, of_wrong", [(2, 1.818, -0.519), (0, 2.749, -0.344)])
def test_rlep_is_one_group_of_eighteen(right, of_right, of_wrong, policy):
    """16 new and 2 old answers have one mean and deviation; without the old ones 2.562, -.366."""
    problem = Problem("a", "1+2=", "3")
    method = wb.methods.rlep(16)
    slot = method.replay
    slot.feedback(answer(policy, problem, 3, 3), Context(round=1))
    fresh = answer(policy, problem, right, 16, seed=1, number=2)
    rollouts, rows = slot.join(fresh, np.arange(16), Context(round=2, policy=policy))
    assert len(rows) == 18
    advantage = method.advantage(rollouts.take(rows), HERE)
    is_right = rollouts.correct[rows]
    assert advantage[is_right] == pytest.approx(np.full(right + 2, of_right), abs=2e-3)
    assert advantage[~is_right] == pytest.approx(np.full(16 - right, of_wrong), abs=2e-3)
    assert rollouts["gradient"][rows].all()
    if right == 2:
        alone = method.advantage(fresh, HERE)
        assert alone[[0, -1]] == pytest.approx([2.562, -0.366], abs=1e-3)


def test_fifo_keeps_the_newest_and_the_newest_right_ones():
    slot = replay.Fifo(size=4, positive=0.5)
    for number, marks in [(1, "1100"), (2, "0010"), (3, "0000")]:
        rollouts, _ = slot.join(table(a=marks, round=number), np.arange(4), Context(round=number))
        slot.feedback(rollouts, Context(round=number))
    able = slot.stored.take(slot.stored["gradient"])
    # Two places for the newest, and two for right ones that would have left.
    assert able.round.tolist() == [1, 2, 3, 3]
    assert able.correct.tolist() == [True, True, False, False]


def test_a_right_answer_kept_by_fifo_keeps_its_advantage():
    """Its group stays with it, so its advantage is still that of one right answer in four."""
    slot = replay.Fifo(size=4, positive=0.5)
    for number, marks in [(1, "1000"), (2, "0000"), (3, "0000")]:
        fresh = table(a=marks, round=number)
        rollouts, _ = slot.join(fresh, np.arange(4), Context(round=number))
        slot.feedback(rollouts, Context(round=number))
    rollouts, rows = slot.join(table(a="0000", round=4), np.arange(4), Context(round=4))
    pool = rollouts.take(rows)
    advantage = group_normalized(pool.reward, pool.group)
    assert advantage[pool.correct] == pytest.approx([1.7321], abs=5e-5)
    # The rest of its group has no gradient and is never drawn.
    context = Context(round=4)
    pool = pool.assign(age=4 - pool.round)
    drawn = selectors.UniformDraws(share=50).select(pool, context)
    assert pool["gradient"][drawn.rows].all()
    assert set(drawn.rows) == set(np.flatnonzero(pool["gradient"]))


def test_every_rollout_is_used_batch_over_new_rollouts_times():
    """1,024 kept, 128 new ones and 256 draws a round would be 2 uses; here 16, 4 and 8."""
    slot = replay.Fifo(size=16)
    draws = selectors.UniformDraws(share=2.0)
    uses = []
    for number in range(1, 120):
        fresh = table(a="1010", round=number)
        rollouts, rows = slot.join(fresh, np.arange(4), Context(round=number))
        pool = rollouts.take(rows)
        pool = pool.assign(age=number - pool.round)
        selection = draws.select(pool, Context(seed=1, round=number))
        times = np.zeros(len(pool))
        times[selection.rows] = np.round(selection.weights * 8 / len(selection.rows))
        assert times.sum() == 8
        assert selection.weights.mean() == pytest.approx(1)
        pool = pool.assign(uses=pool["uses"] + times.astype(int))
        # A rollout is a candidate in its own round and in the four after it.
        uses += pool["uses"][pool.round == number - 4].tolist()
        slot.feedback(pool, Context(round=number))
    assert np.mean(uses[40:]) == pytest.approx(2.0, abs=0.2)


def test_exgrpo_prefers_problems_that_were_half_solved():
    weights = replay.bucket_weights(np.arange(1, 8), 8)
    assert weights == pytest.approx(
        [0.0044, 0.0540, 0.2420, 0.3989, 0.2420, 0.0540, 0.0044], abs=1e-4
    )
    rewards = [1.0] + [0.0] * 7
    advantage = wb.methods.exgrpo().advantage(table(a="10000000"), HERE)
    assert advantage == pytest.approx(np.array(rewards) - 0.125)


def test_exgrpo_draws_buckets_and_then_problems_of_theirs():
    """A bucket is as likely with one problem as with forty."""
    right = np.array([4] + [3] * 40 + [5] * 40)
    drawn = np.zeros(len(right))
    for seed in range(2000):
        places = replay.drawn_from_buckets(right, 8, 1, np.random.default_rng(seed))
        drawn[places] += 1
    weights = replay.bucket_weights(np.array([4, 3, 5]), 8)
    found = [drawn[right == c].sum() / 2000 for c in (4, 3, 5)]
    assert found == pytest.approx(weights / weights.sum(), abs=0.04)
    assert drawn[right == 3].max() < 40  # about 7 each


def test_exgrpo_takes_from_other_buckets_what_one_cannot_give():
    right = np.array([64, 64, 1, 127, 60])
    rng = np.random.default_rng(0)
    for size in range(6):
        places = replay.drawn_from_buckets(right, 128, size, rng)
        assert len(set(places.tolist())) == size
        assert (np.diff(places) > 0).all()
    assert set(replay.drawn_from_buckets(right, 128, 3, rng).tolist()) == {0, 1, 4}


def test_exgrpo_starts_with_success_and_retires_what_is_all_right(policy):
    slot = replay.Buckets(share=1.0, start=0.35)
    problem = Problem("a", "1+2=", "3")
    slot.feedback(answer(policy, problem, 1, 4), Context(round=1))
    assert len(slot.stored) == 0  # one in four is below .35
    slot.feedback(answer(policy, problem, 2, 4, number=2), Context(round=2))
    assert (len(slot.stored), slot.right) == (2, {"a": 2})
    fresh = answer(policy, problem, 0, 3, seed=3, number=3)
    rollouts, rows = slot.join(fresh, np.arange(3), Context(round=3, policy=policy))
    assert rollouts.correct[rows].tolist() == [False, False, False, True]
    slot.feedback(answer(policy, problem, 4, 4, number=3), Context(round=3))
    rollouts, rows = slot.join(fresh, np.arange(3), Context(round=4, policy=policy))
    assert len(rows) == 3


def test_exgrpo_takes_the_largest_group_for_the_size_of_all(policy, monkeypatch):
    slot = replay.Buckets(share=1.0, start=0.0)
    groups = [answer(policy, Problem(name, "1+2=", "3"), 1, n) for name, n in (("a", 2), ("b", 4))]
    fresh = Rollouts.concat(groups)
    slot.feedback(fresh, Context(round=1))
    sizes = []
    monkeypatch.setattr(
        "workbench.catalogue.exgrpo.drawn_from_buckets",
        lambda right, n, size, rng: sizes.append(n) or [0],
    )
    again = fresh.assign(round=np.full(6, 2))
    slot.join(again, np.arange(6), Context(round=2, policy=policy))
    assert sizes == [4]


def test_exgrpo_replays_the_answer_that_the_policy_was_surest_of(policy):
    slot = replay.Buckets(share=1.0, start=0.5)
    problem = Problem("a", "1+2=", "3")
    slot.feedback(answer(policy, problem, 2, 4), Context(round=1))
    assert len(slot.stored) == 0, "the share has to be above the start"
    slot.feedback(answer(policy, problem, 3, 4, number=2), Context(round=2))
    fresh = answer(policy, problem, 0, 3, seed=3, number=3)
    for surest in range(3):
        entropy = np.full(3, 0.9)
        entropy[surest] = 0.1
        slot.stored = slot.stored.assign(entropy=entropy)
        rollouts, rows = slot.join(fresh, np.arange(3), Context(round=3, policy=policy))
        assert rollouts.draw[rows[3:]].tolist() == [slot.stored.draw[surest]]
        # Rules about the first stage of a round do not count old answers.
        assert rollouts.stage[rows].tolist() == [0, 0, 0, 1]


# LILO (2502.12272), AdaRFT (2504.05520), online difficulty filtering (2504.03380)


def test_lilo_trains_on_the_most_learnable_problems():
    """Scores of c of 8 are symmetric; of equal ones the lower index goes first."""
    p = np.arange(9) / 8
    assert (p * (1 - p))[:5] == pytest.approx([0, 0.1094, 0.1875, 0.2344, 0.25], abs=5e-5)
    problems = list(pool_of(8))
    right = [0, 1, 5, 8, 3, 4, 7, 0]
    outcomes = {f"p{i}": "1" * c + "0" * (8 - c) for i, c in enumerate(right)}
    requests, rollouts, rows = drive(
        allocators.MostLearnable(8, factor=4), problems[:2], outcomes, problems[2:]
    )
    assert requests == [[8] * 8]
    # Four of eight is best; three and five of eight tie, and p2 comes before p4.
    assert sorted(set(rollouts.problem[rows])) == ["p2", "p5"]


@pytest.mark.parametrize("first", [1, 9])
def test_lilo_has_ties_of_group_sizes_that_are_no_power_of_two(first):
    outcomes = {f"p{i}": "1" * c + "0" * (10 - c) for i, c in enumerate([first, 10 - first])}
    problems = list(pool_of(2))
    _, rollouts, rows = drive(
        allocators.MostLearnable(10, factor=2), problems[:1], outcomes, problems[1:]
    )
    assert set(rollouts.problem[rows]) == {"p0"}


@pytest.mark.parametrize("marks, target", [("11110", 26.85), ("10000", 0.0), ("11111", 38.08)])
def test_adarft_target_follows_the_reward(marks, target):
    adarft = curricula.AdaRft()
    adarft.feedback(table(a=marks), HERE)
    assert adarft.target == pytest.approx(target, abs=5e-3)
    # The target does not leave the scale.
    adarft.target = 99.0
    adarft.feedback(table(a="11111"), HERE)
    assert adarft.target == 100
    # Old responses do not move it.
    adarft.feedback(table(a="00000"), Context(round=2))
    assert adarft.target == 100


@pytest.mark.parametrize("difficulties", [5, [5.0], {"a": 101.0}, {"a": None}])
def test_adarft_refuses_difficulties_that_are_none(difficulties):
    with pytest.raises(ValueError, match="difficulties"):
        curricula.AdaRft(difficulties=difficulties)


def test_adarft_takes_the_nearest_difficulties_and_the_same_again():
    adarft = curricula.AdaRft()
    pool = pool_of(5, levels=[3, 1, 2, 1, 5])
    assert [p.id for p in adarft.choose(pool, 2, HERE)] == ["p1", "p3"]
    assert [p.id for p in adarft.choose(pool, 2, HERE)] == ["p1", "p3"]
    adarft.target = 50.0  # level 3 of 1 to 5
    assert [p.id for p in adarft.choose(pool, 2, HERE)] == ["p0", "p2"]


def test_problems_that_are_all_of_one_level_have_none_to_choose_by(tmp_path):
    """All would be nearest, so that the first ones would come in every round."""
    lab = wb.labs.tiny(pool=8, levels=(2,), held_out=4)
    with pytest.raises(ValueError, match=r"^curriculum=AdaRft.*\(levels\)"):
        wb.Run(lab, wb.methods.adarft(2), out=tmp_path / "run")
    known = {problem.id: float(place) for place, problem in enumerate(lab.problems)}
    of_own = wb.methods.adarft(2, curriculum=curricula.AdaRft(difficulties=known))
    wb.Run(lab, of_own, out=tmp_path / "run", problems_per_round=4)


@pytest.mark.parametrize("value", [curricula.Cures(), curricula.Dps(), curricula.AdaRft()])
def test_a_round_that_asks_for_more_than_is_left_gets_what_is_left(value):
    pool = pool_of(5, levels=[3, 1, 2, 1, 5])
    left = value.choose(pool, 4, Context(round=1, taken=frozenset({"p0", "p1"})))
    assert {problem.id for problem in left} == {"p2", "p3", "p4"}


def test_online_difficulty_filtering_keeps_an_open_interval():
    problems = pool_of(9)
    outcomes = {f"p{c}": "1" * c + "0" * (8 - c) for c in range(9)}
    sampling = allocators.DynamicSampling(8, max_draws=1, between=(0.25, 0.75))
    _, rollouts, rows = drive(sampling, problems, outcomes)
    assert sorted(set(rollouts.problem[rows])) == ["p3", "p4", "p5"]
    # .58 * 50 is a little less than 29 in floating point.
    outcomes = {"p0": "1" * 29 + "0" * 21, "p1": "1" * 30 + "0" * 20}
    sampling = allocators.DynamicSampling(50, max_draws=1, between=(0.58, 0.9))
    _, rollouts, rows = drive(sampling, pool_of(2), outcomes)
    assert set(rollouts.problem[rows]) == {"p1"}


# All of them


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), min_size=1, max_size=24),
    st.sampled_from(["asymmetric", "maxrl", "pass_at_k", "pkpo", "discounted_beta", "mapp"]),
)
def test_right_is_never_below_wrong_and_order_does_not_matter(rows, name):
    """Within a group a right answer has at least the advantage of a wrong one."""
    correct = np.array([right for right, _ in rows])
    ids = np.array([key for _, key in rows])
    rollouts = Rollouts(problem=ids, correct=correct, reward=correct.astype(float))
    slot = getattr(wb.methods, name)().advantage
    advantage = slot(rollouts, HERE)
    assert np.isfinite(advantage).all()
    for key in set(ids):
        right = advantage[(ids == key) & correct]
        wrong = advantage[(ids == key) & ~correct]
        if len(right) and len(wrong):
            assert right.min() >= wrong.max() - 1e-9
    order = np.argsort(ids, kind="stable")
    assert slot(rollouts.take(order), HERE) == pytest.approx(advantage[order])


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=12), st.integers(2, 20))
def test_counts_in_proportion_add_up_and_keep_the_order_of_weights(weights, average):
    counts = in_proportion(weights, average * len(weights), low=1, up=40)
    assert counts.sum() == average * len(weights)
    assert counts.min() >= 1
    assert counts.max() <= 40
    order = np.argsort(weights)
    assert (np.diff(counts[order]) >= -1).all()  # rounding may turn two that are next to each other


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_every_curriculum_returns_different_problems_and_goes_on_from_its_state(seed, n):
    made = [
        curricula.Mopps(factor=2),
        curricula.Mapp(4, factor=2),
        curricula.Cures(),
        curricula.Greso(),
        curricula.AdaRft(),
        curricula.Dps(),
        curricula.WithoutSolved(),
    ]
    pool = pool_of(12, levels=list(range(12)))
    for curriculum in made:
        for number in (1, 2, 3):
            context = Context(seed=seed, round=number)
            chosen = curriculum.choose(pool, n, context)
            assert len({problem.id for problem in chosen}) == n
            marks = {p.id: ["00", "01", "11"][i % 3] for i, p in enumerate(chosen)}
            curriculum.feedback(table(round=number, **marks), context)
        resumed = curriculum.clone()
        resumed.load_state_dict(curriculum.state_dict())
        context = Context(seed=seed, round=4)
        assert resumed.choose(pool, n, context) == curriculum.choose(pool, n, context)


def test_a_state_of_another_method_is_refused_by_name():
    saved = wb.methods.mopps().state_dict()
    with pytest.raises(ValueError, match=r"state: curriculum=Greso\(\) cannot read what was saved"):
        wb.methods.greso().load_state_dict(saved | wb.methods.greso().state_dict() | saved)


@pytest.mark.parametrize(
    "name", ["mopps", "mapp", "greso", "cures", "pilot_commit", "reinforce_ada_est", "vip"]
)
def test_a_state_of_another_version_is_refused_by_name(name):
    """One entry more, as a later version might save, or one less."""
    method = getattr(wb.methods, name)()
    slot = "curriculum" if method.curriculum.state_dict().get("order") else "allocator"
    saved = method.state_dict()
    more = saved | {slot: saved[slot] | {"temperature": 1.0}}
    with pytest.raises(ValueError, match=rf"state: {slot}=.*temperature.*; it comes from another"):
        method.clone().load_state_dict(more)
    entry = list(saved[slot])[-1]
    less = saved | {slot: {key: value for key, value in saved[slot].items() if key != entry}}
    with pytest.raises(ValueError, match="state: "):
        method.clone().load_state_dict(less)


def test_every_method_cites_its_paper():
    import re

    for name in (*wb.methods.PAPERS, *wb.methods.MORE_PAPERS):
        docstring = getattr(wb.methods, name).__doc__
        assert re.search(r"arXiv \d{4}\.\d{5}", docstring), name
