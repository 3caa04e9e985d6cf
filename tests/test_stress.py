"""Labs under stress: verdicts that err, and rollouts sampled by old weights."""

from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench import config
from workbench.objectives import Objective
from workbench.policies.stress import Stress
from workbench.rollouts import Rollouts
from workbench.utils.seeding import derive

LAB = wb.labs.tiny(pool=32, levels=(1, 2), held_out=8, samples=2, learning_rate=2e-3)
SIZES = {"problems_per_round": 8, "checkpoint_every": 2, "evaluate_every": 0}


def verified(size=2000):
    correct = np.arange(size) % 2 == 0
    return Rollouts(
        problem=np.repeat("p", size),
        text=[f"response {i // 2}" for i in range(size)],
        correct=correct,
        reward=correct.astype(float),
        status=np.where(correct, "ok", "unparsed"),
    )


def rollouts_of(lab, out, rounds=4, method=None):
    run = wb.Run(lab, method or wb.methods.grpo(4), out=out, **SIZES)
    for _ in run.rounds(rounds, progress=False):
        pass
    return wb.load(out).rollouts()


class TestVerdictsThatErr:
    def test_the_shares_are_those_asked_for(self):
        rollouts = verified(8000)
        judged = Stress(missed=0.1, accepted=0.3).misjudge(rollouts, seed=0)
        right = rollouts.correct
        assert judged["truth"].tolist() == right.tolist()
        assert np.mean(~judged.correct[right]) == pytest.approx(0.1, abs=0.02)
        assert np.mean(judged.correct[~right]) == pytest.approx(0.3, abs=0.03)

    def test_status_and_reward_follow_the_verdict(self):
        judged = Stress(missed=1, accepted=1).misjudge(verified(4), seed=0)
        assert judged.correct.tolist() == [False, True, False, True]
        assert judged.reward.tolist() == [0, 1, 0, 1]
        assert judged.status.tolist() == ["wrong", "ok", "wrong", "ok"]

    def test_the_same_response_is_judged_alike_each_time(self):
        stress = Stress(missed=0.5)
        rollouts = verified(64)
        again = stress.misjudge(rollouts.take(np.arange(64)[::-1]), seed=3)
        assert stress.misjudge(rollouts, seed=3).correct.tolist() == again.correct[::-1].tolist()
        other = stress.misjudge(rollouts, seed=4)
        assert stress.misjudge(rollouts, seed=3).correct.tolist() != other.correct.tolist()

    @pytest.mark.slow
    def test_a_run_records_the_truth_and_how_often_it_was_missed(self, tmp_path):
        table = rollouts_of(LAB.stressed(missed=0.4, accepted=0.2), tmp_path / "run")
        wrong = table["truth"] != table["correct"]
        assert 0 < wrong.mean() < 1
        row = wb.load(tmp_path / "run").rounds.iloc[0]
        first = table["round"] == 1
        assert row["misjudged"] == pytest.approx(wrong[first].mean())
        assert row["correct"] == pytest.approx(table["correct"][first].mean())

    @pytest.mark.slow
    @pytest.mark.parametrize("method", [wb.methods.experience_replay(4), wb.methods.rlep(4)])
    def test_old_responses_keep_their_truth(self, method, tmp_path):
        table = rollouts_of(LAB.stressed(missed=0.4), tmp_path / "run", method=method)
        rounds = wb.load(tmp_path / "run").rounds.set_index("round")
        assert len(rounds) == 4
        wrong = (table["truth"] != table["correct"]) & table["trained"]
        trained = rounds["misjudged_trained"] * rounds["trained"]
        # An old response stands in the table of every round that it takes part in.
        expected = wrong.groupby(table["round"] + table["age"]).sum()
        assert trained.to_numpy() == pytest.approx(expected.to_numpy())
        # RLEP keeps no right answers that were missed, so only new rollouts are misjudged.
        assert wrong[table["age"] > 0].any() == (method.name == "experience_replay")

    def test_evaluations_ask_for_the_truth(self, tmp_path):
        first = []
        for lab in (LAB, LAB.stressed(missed=1, accepted=1)):
            out = tmp_path / str(len(first))
            run = wb.Run(lab, wb.methods.grpo(4), out=out, **SIZES | {"evaluate_every": 1})
            list(run.rounds(1, progress=False))
            evals = wb.load(out).evals
            first.append(evals[evals["round"] == 0]["correct"].tolist())
        assert first[0] == first[1]


class TestOldWeights:
    @pytest.mark.slow
    def test_a_lag_of_zero_is_the_plain_lab(self, tmp_path):
        plain = rollouts_of(LAB, tmp_path / "plain")
        none = rollouts_of(LAB.stressed(), tmp_path / "none")
        assert plain.equals(none)

    @pytest.mark.slow
    def test_rollouts_are_those_of_the_weights_so_many_rounds_ago(self, tmp_path):
        """Without any change of weights all rounds are alike, so the lag shows in what differs."""
        lag = rollouts_of(LAB.stressed(lag=2), tmp_path / "lag")
        policy = LAB.policy()
        asked = wb.Run(LAB, wb.methods.grpo(4), **SIZES)
        list(asked.rounds(1, progress=False))
        # Rounds 1 to 3 are sampled by the initial weights, round 4 by those after round 1.
        by_round = {number: rows for number, rows in lag.groupby("round")}
        problems = {problem.id: problem for problem in LAB.problems}
        for number, sampler in ((3, policy), (4, asked.policy)):
            ids = list(dict.fromkeys(by_round[number]["problem"]))
            seeds = [derive(0, "generate", number, id, 0) for id in ids]
            again = sampler.generate([problems[id] for id in ids], [4] * 8, LAB.sampling, seeds)
            assert again.text.tolist() == by_round[number]["text"].tolist()

    @pytest.mark.long
    @pytest.mark.slow
    @pytest.mark.parametrize("stress", [{"lag": 3}, {"lag": 1, "missed": 0.2, "accepted": 0.1}])
    @pytest.mark.parametrize("name", ["grpo", "corrected", "ar3po", "pods"])
    def test_a_resumed_run_is_the_uninterrupted_one(self, tmp_path, stress, name):
        grpo = wb.methods.grpo(4)
        weighed = replace(grpo.objective, sampler_correction="truncate", sampler_cap=3.0)
        method = {
            "grpo": grpo,
            "corrected": grpo.but(objective=weighed),
            "ar3po": wb.methods.ar3po(),
            "pods": wb.methods.pods(n=4, m=2),
        }[name]
        lab = LAB.stressed(**stress)
        whole = rollouts_of(lab, tmp_path / "whole", 5, method)
        rollouts_of(lab, tmp_path / "parts", 3, method)
        list(wb.Run.resume(tmp_path / "parts").rounds(5, progress=False))
        assert whole.equals(wb.load(tmp_path / "parts").rollouts())

    @pytest.mark.slow
    def test_the_importance_weights_of_the_objective_act(self, tmp_path):
        lab = LAB.stressed(lag=3)
        norms = []
        for correction in (None, "truncate", "off"):
            method = wb.methods.grpo(4).but(objective=Objective(sampler_correction=correction))
            out = tmp_path / str(correction)
            rollouts_of(lab, out, 4, method)
            rounds = wb.load(out).rounds
            norms.append(rounds["gradient_norm"].tolist())
            assert rounds["sampler_gap"].iloc[-1] > 0
        # The first round is sampled by the present weights, so that its importance weights are 1
        # up to rounding.
        assert norms[0][0] == pytest.approx(norms[1][0], rel=1e-4)
        assert abs(norms[0][3] / norms[1][3] - 1) > 1e-2
        assert norms[0] == norms[2]  # nothing corrects a lag unasked


def test_a_manifest_makes_the_lab_again():
    lab = LAB.stressed(lag=2, accepted=0.5)
    assert lab.description()["stress"] == {"lag": 2, "accepted": 0.5}
    assert config.recorded_lab(lab.description()).stress == lab.stress
    assert "stress" not in lab.stressed().description()


@pytest.mark.parametrize("wrong", [{"lag": -1}, {"lag": 1.5}, {"missed": 1.2}, {"accepted": "x"}])
def test_wrong_conditions_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        LAB.stressed(**wrong)
    with pytest.raises(ValueError, match=name):
        config.lab("tiny", {"stress": wrong})
    with pytest.raises(ValueError, match="lags"):
        config.lab("tiny", {"stress": {"lags": 1}})
