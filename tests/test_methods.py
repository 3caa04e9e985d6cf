"""Every method trains in the tiny lab, and its record shows what the paper says.

Any value of a slot goes with any value of the others.
"""

import inspect
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import Gradients, go, same_record, same_weights, small_lab
from small_methods import NAMES

import workbench as wb
from workbench.objectives import Objective
from workbench.rollouts import Context, Rollouts
from workbench.rules import allocators, selectors
from workbench.rules.advantages import GroupNormalized, LeaveOneOut, group_normalized
from workbench.rules.replay import CorrectResponses
from workbench.slots import Selection, Slot

SMALL = {"problems_per_round": 8, "evaluate_every": 0, "checkpoint_every": 2}
METHODS = {
    "grpo": wb.methods.grpo(4),
    "dapo": wb.methods.dapo(4),
    "gspo": wb.methods.gspo(4),
    "dr_grpo": wb.methods.dr_grpo(4),
    "pods": wb.methods.pods(8, 4),
    "ar3po": wb.methods.ar3po(2, 2),
    "knapsack": wb.methods.knapsack(4),
    "aero": wb.methods.aero(4, 8, n_max=10, k_max=3),
    "cbs": wb.methods.cbs(n=4, p=50).adjust("selector", warmup=2, start=0.5),
}


def trained(method, tmp_path, rounds=5, **options):
    """Rounds and rollouts of a short run on a pool of 16 problems: an epoch is two rounds."""
    run = wb.Run(small_lab(pool=16), method, out=tmp_path, **{**SMALL, **options})
    go(run, rounds)
    return run.record.rounds, run.record.rollouts()


def sizes(rollouts):
    return rollouts.groupby(["round", "problem"]).size()


def test_every_paper_is_a_method():
    assert set(METHODS) == set(wb.methods.PAPERS)
    for name in wb.methods.PAPERS:
        assert getattr(wb.methods, name)().name == name


# What these three have learnt goes on from one epoch to the next. That every method goes on exactly
# within an epoch is in test_run.py.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar3po", "knapsack", "cbs"])
def test_five_rounds_resume_exactly(name, tmp_path):
    method = METHODS[name]
    trained(method, tmp_path / "whole")
    trained(method, tmp_path / "parts", 3)
    assert len(go(wb.Run.resume(tmp_path / "parts"), 5)) == 2
    whole = wb.load(tmp_path / "whole")
    parts = wb.load(tmp_path / "parts")
    same_record(whole, parts)
    assert same_weights(whole.path, parts.path)
    assert len(whole.rounds) == 5
    assert whole.rounds["steps"].max() == 1


@pytest.mark.slow
def test_pods_trains_on_m_of_n(tmp_path):
    rounds, rollouts = trained(METHODS["pods"], tmp_path)
    kept = rollouts[rollouts["selected"]]
    assert (sizes(rollouts) == 8).all()
    assert (sizes(kept) == 4).all()
    assert (rounds["selected"] == 32).all()
    for _, group in rollouts.groupby(["round", "problem"]):
        right = group["correct"].sum()
        kept_right = group[group["selected"]]["correct"].sum()
        # Theorem 2: half and half, as far as there are.
        assert kept_right == np.clip(2, max(0, right - 4), min(4, right))


@pytest.mark.slow
def test_ar3po_stages_and_replay(tmp_path):
    rounds, rollouts = trained(METHODS["ar3po"], tmp_path, rounds=6)
    fresh = rollouts[rollouts["age"] == 0]
    for _, group in fresh.groupby(["round", "problem"]):
        assert len(group) == (2 if group[group["stage"] == 0]["correct"].any() else 4)
    old = rollouts[rollouts["age"] > 0]
    assert len(old) > 0
    assert old["round"].min() >= 1
    assert old["correct"].all()
    assert not old["trained"].any()
    assert (rounds["rollouts"] < 32).any()
    assert rounds["replay_stored"].iloc[-1] == fresh["correct"].sum()
    assert rounds["replay_bytes"].iloc[-1] > 0


@pytest.mark.slow
def test_knapsack_keeps_the_total_and_starts_uniform(tmp_path):
    rounds, rollouts = trained(METHODS["knapsack"], tmp_path, rounds=6)
    assert (rounds["rollouts"] == 32).all()
    counts = sizes(rollouts)
    assert (counts[:2] == 4).all()
    assert counts.min() >= 2
    assert (counts[3:] != 4).any()
    assert np.isfinite(rounds["success_rate_error"].iloc[-1])


@pytest.mark.slow
def test_aero_sizes(tmp_path):
    _, rollouts = trained(METHODS["aero"], tmp_path)
    for _, group in rollouts.groupby(["round", "problem"]):
        explored = group[group["stage"] == 0]
        kept = group[group["selected"]]
        right = explored["correct"].sum()
        assert len(explored) == 4
        assert len(group) == 4 or right == 0
        if group["correct"].nunique() == 1:
            assert len(kept) == 4
            assert (kept["advantage"] != 0).all()
        elif right == 0:
            assert kept["correct"].tolist().count(True) == 1
            assert len(kept) == 2
        elif right / 4 < 0.5:
            assert kept["correct"].sum() == right
            assert len(kept) == 2 * right
        else:
            assert len(kept) == len(group)


@pytest.mark.slow
def test_dapo_trains_on_mixed_groups_only(tmp_path):
    rounds, rollouts = trained(METHODS["dapo"], tmp_path, problems_per_round=4)
    kept = rollouts[rollouts["selected"]]
    assert kept.groupby(["round", "problem"])["correct"].nunique().eq(2).all()
    assert (rounds["problems"] <= 12).all()
    assert (rounds["problems"] > 4).any()
    assert (rounds["selected"] <= 16).all()
    assert {"reward_correct", "reward_overlong"} <= set(rollouts.columns)


def test_dapo_with_nothing_mixed_ends_and_trains_on_nothing(tmp_path):
    from workbench.verifiers import Scores

    class Solved:
        def score(self, responses, answers):
            return Scores.of(["ok"] * len(responses))

    lab = replace(small_lab(pool=16, held_out=0), verifier=Solved())
    row = go(wb.Run(lab, wb.methods.dapo(2), problems_per_round=4, evaluate_every=0), 1)[0]
    assert row["rollouts"] == 24
    assert row["selected"] == 0
    assert row["steps"] == 0
    assert np.isnan(row["loss"])


@pytest.mark.slow
def test_a_cross_product_is_one_expression(tmp_path):
    method = wb.methods.knapsack(8).but(
        name="knapsack-pods-gspo",
        selector=selectors.MaxVariance(4),
        replay=CorrectResponses(),
        advantage=LeaveOneOut(clip=5.0),
        objective=Objective((3e-4, 4e-4), "sequence", "rollout"),
    )
    rounds, rollouts = trained(method, tmp_path)
    assert (rounds["rollouts"] == 64).all()
    assert sizes(rollouts[rollouts["selected"]]).max() <= 4
    assert "Knapsack" in repr(method)
    assert "MaxVariance(m=4)" in repr(method)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["epoch", "beta", "fresh", "predictor"])
def test_every_kind_of_success_rate_runs(kind, tmp_path):
    trained(wb.methods.knapsack(6, rates=kind), tmp_path / "whole", 4)
    trained(wb.methods.knapsack(6, rates=kind), tmp_path / "parts", 3)
    go(wb.Run.resume(tmp_path / "parts"), 4)
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "parts"))


def test_a_selector_of_ones_own_in_a_few_lines(tmp_path):
    @dataclass(frozen=True)
    class Shortest(Slot):
        """Keeps the m shortest rollouts of the round."""

        m: int

        def select(self, rollouts, context):
            return Selection(np.argsort(rollouts.lengths, kind="stable")[: self.m])

    rounds, rollouts = trained(
        wb.methods.grpo(4).but(name="shortest", selector=Shortest(10)), tmp_path, 1
    )
    assert rounds["selected"].tolist() == [10]
    kept = rollouts.loc[rollouts["selected"], "length"]
    left_out = rollouts.loc[~rollouts["selected"], "length"]
    assert kept.max() <= left_out.min()


class TestCorrectResponses:
    """On hand-made groups of one problem, one of eight rows replaced."""

    @staticmethod
    def sampled(policy):
        sampling = wb.policies.Sampling(max_new_tokens=12)
        return policy.generate(["1+2="] * 2, [1, 8], sampling, seed=3)

    def joined(self, mode, policy, sampled=None):
        slot = CorrectResponses(mode)
        sampled = self.sampled(policy) if sampled is None else sampled
        sampled = sampled.assign(problem=np.array(["p"] * 9), gradient=np.ones(9, bool))
        solved = sampled.take([0]).assign(correct=[True], reward=[1.0], round=[1])
        slot.feedback(solved, Context(round=1))
        table = sampled.take(np.arange(1, 9)).assign(
            reward=np.zeros(8), correct=np.zeros(8, bool), round=np.full(8, 2)
        )
        return slot.join(table, np.arange(8), Context(round=2, policy=policy))

    @pytest.mark.parametrize("mode", ["stop-gradient", "recompute", "direct"])
    def test_one_in_eight(self, mode, policy):
        rollouts, candidates = self.joined(mode, policy)
        assert len(rollouts) == 9
        assert len(candidates) == 8
        assert candidates[-1] == 8
        assert rollouts.correct.sum() == 1
        advantages = group_normalized(rollouts.reward[candidates], rollouts.problem[candidates])
        assert advantages[:7] == pytest.approx(np.full(7, -0.378), abs=5e-4)
        assert advantages[7] == pytest.approx(2.646, abs=1e-3)
        assert rollouts["gradient"][candidates].tolist() == [True] * 7 + [mode != "stop-gradient"]

    def test_no_gradient_through_it_in_stop_gradient_mode(self, policy):
        from workbench.grpo import grpo_step

        rollouts, candidates = self.joined("stop-gradient", policy)
        chosen = rollouts.take(candidates)
        advantages = np.zeros(8)
        advantages[7] = 2.6  # all of the others' silenced
        keeper = Gradients(policy)
        stats = grpo_step(policy, keeper, chosen, advantages)
        assert not keeper.seen.any()
        assert stats.rollouts == 0
        with_gradient = chosen.assign(gradient=np.ones(8, bool))
        assert grpo_step(policy, keeper, with_gradient, advantages).rollouts == 1

    def test_probabilities_are_of_the_right_policy(self, policy):
        import torch

        # The same responses both times, so that nothing but the policy differs.
        sampled = self.sampled(policy)
        direct, _ = self.joined("direct", policy, sampled)
        length = int(direct.lengths[8])
        sampled_with = direct.old_logprobs[8][:length]
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(0.05 * torch.randn_like(p))
        rollouts, _ = self.joined("recompute", policy, sampled)
        with torch.no_grad():
            now = policy.logprobs(rollouts.take([8])).numpy()[0][:length]
        assert rollouts.old_logprobs[8][:length] == pytest.approx(now, abs=1e-5)
        assert np.abs(sampled_with - now).max() > 1e-3

    def test_capacity_drops_the_oldest_and_state_comes_back(self):
        slot = CorrectResponses(capacity=2)
        for number in (1, 2, 3):
            table = Rollouts(
                problem=["a", "b"],
                correct=[True, number == 1],
                round=[number] * 2,
                text=[f"t{number}"] * 2,
            )
            slot.feedback(table, Context(round=number))
        assert sorted(zip(slot.stored.problem, slot.stored.round)) == [("a", 2), ("a", 3), ("b", 1)]
        other = CorrectResponses(capacity=2)
        other.load_state_dict(slot.state_dict())
        assert other.stored.text.tolist() == slot.stored.text.tolist()
        assert other.metrics() == slot.metrics()

    def test_a_capacity_of_one_keeps_the_newest(self):
        slot = CorrectResponses(capacity=1)
        for number in (1, 2):
            table = Rollouts(
                problem=["a", "a", "b"],
                correct=[True, True, number == 1],
                round=[number] * 3,
                text=[f"t{number}"] * 3,
            )
            slot.feedback(table, Context(round=number))
        assert sorted(zip(slot.stored.problem, slot.stored.round)) == [("a", 2), ("b", 1)]

    def test_nothing_stored_takes_no_room(self):
        assert CorrectResponses().metrics() == {"replay_stored": 0, "replay_bytes": 0}

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="mode='clone': allowed are"):
            CorrectResponses("clone")
        with pytest.raises(ValueError, match="capacity=0"):
            CorrectResponses(capacity=0)


class TestWhatSlotsLearnTogether:
    """A method speaks for its slots: clone, state, measurements and feedback."""

    def test_a_clone_has_learnt_nothing_and_is_equal(self, tmp_path):
        method = wb.methods.knapsack(4).but(replay=CorrectResponses())
        run = wb.Run(small_lab(pool=16), method, out=tmp_path, **SMALL)
        go(run, 1)
        assert run.method.allocator.rates.state_dict()["learner"]["recent"]
        assert len(run.method.replay.stored)
        clone = run.method.clone()
        assert clone == method
        assert clone.allocator.rates.state_dict()["learner"]["recent"] == {}
        assert len(clone.replay.stored) == 0

    def test_a_run_leaves_the_method_that_it_was_given_alone(self, tmp_path):
        method = wb.methods.cbs(n=4, scope="buffer")
        go(wb.Run(small_lab(pool=16), method, out=tmp_path, **SMALL), 2)
        assert method.curriculum.cursor == 0
        assert len(method.replay.stored) == 0
        assert method.selector.learner is None

    def test_state_of_a_method_with_other_slots_is_refused(self):
        with_replay = wb.methods.ar3po()
        without = wb.methods.grpo()
        with pytest.raises(ValueError, match=r"saved by a method with other slots \(replay\)"):
            without.load_state_dict(with_replay.state_dict())

    def test_state_of_a_value_that_learns_is_refused_by_one_that_does_not(self):
        learnt = wb.methods.grpo().but(allocator=allocators.Knapsack()).state_dict()
        with pytest.raises(ValueError, match=r"allocator=Uniform\(.*cannot read what was saved"):
            wb.methods.grpo().load_state_dict(learnt)

    def test_measurements_of_all_slots_are_columns_of_the_record(self, tmp_path):
        method = wb.methods.cbs(n=4, scope="buffer").but(allocator=allocators.Knapsack(4))
        rounds, _ = trained(method, tmp_path, 1)
        assert {"success_rate_known", "buffer_stored", "scheduler_epsilon"} <= set(rounds.columns)


def test_defaults_are_left_out_when_a_method_is_shown():
    method = wb.methods.grpo().but(advantage=GroupNormalized(eps=1e-6))
    assert "advantage=GroupNormalized(eps=1e-06)" in repr(method)
    assert "selector=All()" in repr(method)
    assert "GroupNormalized(eps=1e-06)" in method._repr_html_()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: wb.methods.pods(8, 9), "m=9"),
        (lambda: wb.methods.pods(8, 0), "m=0"),
        (lambda: wb.methods.pods(8, 1), "m=1"),
        (lambda: wb.methods.grpo(8).but(selector=selectors.MaxVariance(1)), "m=1"),
        (lambda: wb.methods.grpo(8).but(selector=selectors.MaxReward(1)), "m=1"),
        (
            lambda: wb.methods.pods(8, 2, "random").but(
                selector=selectors.Random(1), advantage=LeaveOneOut()
            ),
            "m=1",
        ),
        (lambda: wb.methods.pods(rule="max_varience"), "did you mean 'max_variance'"),
        (lambda: wb.methods.pods(rule="best"), "rule='best'"),
        (lambda: wb.methods.grpo(1), "n=1"),
        (lambda: wb.methods.knapsack(200), "n=200"),
        (lambda: wb.methods.dapo(overlong=2.0), "buffer=2.0"),
        (lambda: allocators.Staged(0, 4), "stages=0"),
        (lambda: wb.methods.knapsack(rates="guess"), "kind='guess'"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", NAMES)
def test_a_registered_function_makes_the_method_of_its_name(name):
    entry = wb.methods.entry(name)
    assert entry.make is getattr(wb.methods, name)
    assert entry.make().name == name
    assert re.search(r"\(arXiv \d{4}\.\d{5}\)", entry.paper)
    # Every argument has a name, so that a grid and the command line can give it.
    kinds = {each.kind for each in inspect.signature(entry.make).parameters.values()}
    assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.slow
def test_the_core_never_loads_a_further_paper():
    """A file of the catalogue is loaded when its method is asked for, and alone."""
    code = (
        "import sys, workbench.run, workbench.config; from workbench import methods\n"
        "loaded = lambda: {m for m in sys.modules if m.startswith('workbench.catalogue.')}\n"
        "assert not loaded(), loaded()\n"
        "methods.pkpo()\n"
        "assert loaded() == {'workbench.catalogue.pkpo'}, loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
