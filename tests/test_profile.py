"""`wb.profile`: what a model does before it is trained, and what each method would do there."""

import dataclasses
import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from scipy.special import comb
from test_same_run import MODEL, ROWS, changed_weights
from test_served import at, lab_at
from typer.testing import CliRunner

import workbench as wb
from papers import profiles
from workbench.__main__ import main
from workbench.analysis.cost import MACHINES
from workbench.policies import Sampling
from workbench.policies.served import ServerError
from workbench.slots import Slot
from workbench.trials.profile import Profile
from workbench.trials.rates import GRID, Rates
from workbench.verifiers import Scores, Verifier

SCRIPT = """
import sys
sys.path.insert(0, "tests")
from conftest import small_lab
import workbench as wb
wb.profile(small_lab(), samples=4, out=sys.argv[1])
"""


def of_counts(correct, samples=16):
    """A profile of problems of which so many responses are right."""
    names = [f"p{number}" for number in range(len(correct))]
    return Profile(pd.DataFrame({"problem": names, "samples": samples, "correct": correct}))


def of_rates(rates, samples=16, seed=0):
    return of_counts(np.random.default_rng(seed).binomial(samples, rates), samples)


@pytest.mark.long
def test_a_notebook_has_a_bar_of_its_own(tmp_path):
    """As for a run, and not a red line that changes every thirty seconds."""
    begin = f"import sys\nsys.argv = ['', {str(tmp_path / 'profile')!r}]\n"
    cell = nbformat.v4.new_code_cell(begin + SCRIPT + "None")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    resources = {"metadata": {"path": str(Path(__file__).parents[1])}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    kinds = [set(output.get("data", {"text"})) for output in cell.outputs]
    assert kinds and all("application/vnd.jupyter.widget-view+json" in kind for kind in kinds)


def test_help_shows_the_arguments_of_a_plan():
    assert {"rounds", "machine", "problems_per_round"} < set(
        inspect.signature(Profile.plan).parameters
    )


# What it says


@pytest.mark.slow
def test_the_fit_knows_what_counting_does_not():
    table = pd.read_csv("data/profile-recovery.csv")
    part = profiles.recovery(["uniform"], samples=(16,), sizes=(8,), draws=20)
    stored = table[(table["rates"] == "uniform") & (table["samples"] == 16) & (table["n"] == 8)]
    np.testing.assert_allclose(
        part[["true", "fitted", "counted", "covered"]],
        stored[["true", "fitted", "counted", "covered"]],
        rtol=2e-3,
    )
    errors = (table[["fitted", "counted"]].sub(table["true"], axis=0)).abs()
    better = errors["fitted"] < errors["counted"]
    assert better[table["n"] <= table["samples"]].all()
    assert better.sum() >= len(table) - 1
    assert errors["fitted"].max() < 0.08 < errors["counted"].median()
    # All of one rate is an end of what can be, which no interval reaches.
    assert table[table["rates"] != "all .3"]["covered"].min() >= 0.8


def test_up_to_the_samples_it_agrees_with_an_unbiased_count():
    """Of c right of s responses, how many of all groups of n have all right or all wrong."""
    profile = of_rates(np.random.default_rng(1).beta(0.5, 1, 400))
    n, s, c = 8, 16, profile.table["correct"].to_numpy()
    exact = np.mean((comb(c, n) + comb(s - c, n)) / comb(s, n))
    row = profile.by_n([n]).iloc[0]
    assert row["low"] <= exact <= row["high"]
    assert row["no_gradient"] == pytest.approx(exact, abs=0.02)
    assert row["no_gradient"] == pytest.approx(row["all_right"] + row["all_wrong"], abs=1e-9)
    assert row["pass_at_n"] == pytest.approx(1 - row["all_wrong"], abs=1e-9)


def test_what_papers_print_follows_from_their_rates():
    # Knapsack RL, section 3.2: at a rate of .01 a group of 229 has a gradient with 90 %.
    gradient = 1 - (GRID**229 + (1 - GRID) ** 229)
    assert gradient[np.searchsorted(GRID, 0.01)] == pytest.approx(0.9, abs=1e-3)
    # Its table 3: 72 rollouts of nine problems, as a plan whose model is the printed rates.
    rates = np.arange(1, 10) / 10
    counts = wb.allocators.knapsack(rates, total=72, low=3)
    assert counts.tolist() == [14, 12, 9, 7, 7, 7, 7, 6, 3]
    # AR3PO: 6.95 responses to problems with rates up to .2, about 4 to those above .8. The first
    # number is that of a rate of .073, which lies in its bin.
    few = [of_rates(np.full(64, rate), 64).plan("ar3po", repetitions=4) for rate in (0.073, 0.95)]
    responses = [plan["rollouts"][0] / 32 for plan in few]
    assert responses == [pytest.approx(6.95, abs=0.35), pytest.approx(4.0, abs=0.1)]


@pytest.mark.slow
def test_a_plan_of_aero_against_its_table():
    """AERO with Qwen2.5-Math-1.5B: 33.6 % of the groups of 16 are all wrong under GRPO, and GRPO
    has 2.8 times the FLOPs of training at the same budget of 16 rollouts a problem.

    How many groups are all right is not printed; anything between a tenth and a quarter says the
    same. The plan counts rollouts and no prompts, and comes out a fifth above the paper.
    """
    for a, b in ((0.246, 0.454), (0.165, 0.2)):
        rng = np.random.default_rng(0)
        profile = of_rates(rng.beta(a, b, 256), 256)
        methods = {"grpo": wb.methods.grpo(16), "aero": wb.methods.aero()}
        plan = profile.plan(methods, problems_per_round=128, rounds=2, repetitions=3)
        grpo, aero = plan.to_dict("records")
        # GRPO updates on all that it samples.
        assert 2.8 < grpo["rollouts"] / aero["trained"] < 2.8 * 1.25
        assert aero["rollouts"] <= grpo["rollouts"] == 2048
        assert profile.by_n([16])["all_wrong"][0] == pytest.approx(0.336, abs=0.06)


def printed_rate(correct, samples):
    """Success rate and the ends of its interval, as a profile prints them."""
    numbers = re.findall(r"[\d.]+(?=%)", repr(of_counts(correct, samples)).splitlines()[0])
    return np.array(numbers, float) / 100


def test_the_success_rate_is_what_was_counted():
    """The mean of the fit is drawn to one half: 9.8 % of 8 problems with one of 32 right."""
    rate, low, high = printed_rate([1] + [0] * 7, 4)
    assert rate == pytest.approx(1 / 32, abs=1e-3) and 0 < low < 0.01 and 0.15 < high < 0.4
    # What is never seen has an interval all the same, narrower with more problems.
    for problems, most in ((1, 0.995), (8, 0.45), (200, 0.02)):
        rate, low, high = printed_rate([0] * problems, 4)
        assert (rate, low) == (0, 0) and most / 2 < high < most
    assert np.allclose(printed_rate([4] * 8, 4), 1 - printed_rate([0] * 8, 4)[[0, 2, 1]])
    # Of equal rates of problems as much is known as of all their samples, and at most that.
    assert np.allclose(printed_rate([5, 5, 5, 6], 16)[1:], [0.17, 0.55], atol=0.05)


def test_the_interval_of_the_success_rate_holds_it():
    beta = [(0.1, 2, 8, 4), (0.5, 1, 30, 4), (20, 980, 30, 16), (0.2, 0.2, 8, 8)]
    for a, b, problems, samples in beta:
        rng = np.random.default_rng(0)
        draws = rng.binomial(samples, rng.beta(a, b, (300, problems)))
        ends = [Rates(np.full(problems, samples), draw).counted() for draw in draws]
        holds = [low <= a / (a + b) <= high for _, low, high in ends]
        assert np.mean(holds) >= 0.93


def test_samples_that_differ_are_named_as_a_range():
    assert repr(of_counts([0, 1, 2], [4, 4, 12])).startswith("3 problems, 4 to 12 samples each:")


def test_a_group_of_one_never_has_a_gradient_whatever_it_costs():
    assert of_rates([0.2, 0.5, 0.7]).by_n([1])["cost"][0] == np.inf


def test_problems_are_told_apart():
    profile = of_counts([0] * 20 + [16] * 10 + [8] * 20)
    assert profile.table["status"].tolist() == ["hopeless"] * 20 + ["done"] * 10 + [""] * 20
    assert (profile.table["low"] <= profile.table["rate"]).all()
    assert (profile.table["high"] >= profile.table["rate"]).all()


def test_one_answer_that_is_never_right_is_suspicious(tmp_path):
    rows = [
        {"problem": name, "correct": 0, "response": f"so \\boxed{{{answer}}}"}
        for name, answers in (("gold is wrong", "7771"), ("hard", "1234"))
        for answer in answers
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    table = Profile.read(path).table.set_index("problem")
    assert table["status"]["gold is wrong"] == "suspicious"
    assert table["status"]["hard"] != "suspicious"


@pytest.mark.parametrize(
    ("correct", "samples"),
    [([5], 16), ([16] * 30, 16), ([0] * 30, 16), ([0, 1] * 40, 1)],
    ids=["one problem", "all solved", "none solved", "one sample each"],
)
def test_little_data_gives_wide_intervals(correct, samples):
    profile = of_counts(correct, samples)
    row = profile.by_n([8]).iloc[0]
    assert 0 <= row["low"] < row["high"] <= 1
    if len(correct) == 1:
        assert row["high"] - row["low"] > 0.15
    plan = profile.plan("grpo", repetitions=2)
    assert 0 <= plan["effective_gradient_ratio"][0] <= 1
    assert 2 <= profile.best_n() <= 64
    assert "problems" in repr(profile)


# A plan


@pytest.mark.slow
def test_a_plan_agrees_with_arithmetic():
    profile = of_rates(np.full(200, 0.5), 64)
    plan = profile.plan(["grpo", "pods"], rounds=4).set_index("method")
    assert plan["rollouts"].tolist() == [256, 2048]
    gradient = 1 - profile.by_n([8])["no_gradient"][0]
    row = plan.loc["grpo"]
    assert row["low"] <= gradient <= row["high"]
    assert row["groups"] == pytest.approx(32 * gradient, rel=0.02)
    assert row["gradient_weight"] == pytest.approx(256 * gradient / 4, rel=0.05)
    l40s = MACHINES["l40s"]
    expected = 32 * l40s.fixed + 256 * l40s.price + 256
    assert row["cost"] == pytest.approx(expected)
    # PODS: a step of one problem takes 4.3 + .055 n + .19 m seconds.
    assert row["seconds"] == pytest.approx(32 * (4.3 + 0.055 * 8 + 0.19 * 8))
    again = profile.plan(["grpo", "pods"], rounds=4).set_index("method")
    pd.testing.assert_frame_equal(plan, again)


def test_groups_that_pay_have_a_size():
    hard, easy = of_rates(np.full(100, 0.03), 64), of_rates(np.full(100, 0.5), 64)
    assert hard.best_n() > easy.best_n()
    # Where sampling is all that costs, groups are small.
    assert easy.best_n("flops") < easy.best_n("l40s")


@pytest.mark.slow
def test_a_method_that_remembers_shows_it():
    profile = of_rates(np.tile([0.02, 0.5], 16))
    first = profile.plan("knapsack", rounds=1)["effective_gradient_ratio"][0]
    later = profile.plan("knapsack", rounds=5)["effective_gradient_ratio"][0]
    assert later > first + 0.05


@pytest.mark.slow
def test_every_method_can_be_planned():
    from workbench.utils.names import MORE_PAPERS, PAPERS

    profile = of_rates(np.random.default_rng(0).random(48), 8)
    names = [*PAPERS, *MORE_PAPERS]
    plan = profile.plan(names, problems_per_round=4, rounds=2, repetitions=2)
    assert plan["method"].tolist() == names
    assert (plan["rollouts"] > 0).all()
    assert plan["cannot_say"].str.contains("learnt").all()


@pytest.mark.long
def test_planned_against_measured():
    table = pd.read_csv("data/profile-planned.csv")
    runs, inside = table["runs"].sum(), table["first_inside"].sum()
    assert inside / runs > 0.8
    shelf = {
        "grpo": [wb.load(f"data/runs/head-to-head/grpo/seed-{seed}") for seed in range(8)],
    }
    row = profiles.planned(shelf, "0.1 M").iloc[0]
    stored = table[(table["shelf"] == "head-to-head") & (table["method"] == "grpo")].iloc[0]
    for name in ("planned", "first", "low", "high"):
        assert row[name] == pytest.approx(stored[name], rel=2e-3)


@pytest.mark.slow
def test_a_method_starts_with_the_rates_of_a_profile(tmp_path):
    lab = small_lab()
    profile = wb.profile(lab, samples=8)
    method = wb.methods.knapsack(8)
    started = profile.start(method)
    plans = profile.plan({"unknown": method, "started": started}, rounds=1, problems_per_round=16)
    unknown, known = plans["effective_gradient_ratio"]
    assert known > unknown
    problems = [lab.problems[place] for place in range(8)]
    belief = started.clone().allocator.rates
    rates = profile.table.set_index("problem")["rate"]
    context = wb.slots.Context(0, 1)
    expected = [rates[problem.id] for problem in problems]
    assert belief.learner.estimate(problems, context).tolist() == pytest.approx(expected)
    whole = wb.Run(lab, started, seed=0, out=tmp_path / "whole", problems_per_round=4)
    list(whole.rounds(2))
    run = wb.Run(lab, started, seed=0, out=tmp_path / "run", problems_per_round=4)
    for _ in run.rounds(1):
        pass
    with pytest.raises(ValueError, match="pass"):
        wb.Run.resume(tmp_path / "run")
    list(wb.Run.resume(tmp_path / "run", method=started).rounds(2))
    columns = ["rollouts", "selected", "reward", "loss"]
    tables = [wb.load(tmp_path / name).rounds[columns] for name in ("whole", "run")]
    pd.testing.assert_frame_equal(*tables)
    with pytest.raises(ValueError, match="method='grpo'"):
        profile.start(wb.methods.grpo())


def test_a_curriculum_starts_with_the_rates_of_a_profile_too():
    profile = of_counts([4] * 10)
    table = profile.table
    curriculum = profile.start(wb.methods.mopps()).clone().curriculum
    believed = (table["correct"] + 1) / (table["samples"] + 2)
    assert curriculum.posteriors.means(table["problem"].tolist()) == pytest.approx(believed)


def test_wrong_plans_are_refused():
    profile = of_counts([4] * 10)
    with pytest.raises(ValueError, match="problems_per_round=11"):
        profile.plan("grpo", problems_per_round=11)
    with pytest.raises(ValueError, match=r"machine='l40'.*'l40s'"):
        profile.plan("grpo", machine="l40")
    with pytest.raises(ValueError, match="grop"):
        profile.plan("grop")
    with pytest.raises(ValueError, match="prompt"):
        profile.problems()


class Invents(Slot):
    """A curriculum with problems of its own."""

    def choose(self, pool, n, context):
        return [wb.problems.Problem(f"mine {i}", "1+1=", "2") for i in range(n)]


class Near:
    name = "near"
    weight = 0.1

    def __call__(self, rollouts, sampling):
        return np.array([float(answer) > 0 for answer in rollouts.answer])


def test_a_plan_of_slots_of_ones_own_says_what_it_cannot_tell():
    profile = of_counts([4] * 10)
    with pytest.raises(ValueError, match=r"^curriculum: .*'mine 0'"):
        profile.plan(Invents(), rounds=1, repetitions=2)
    profile.table["answer"] = "7"
    graded = wb.methods.grpo(4).but(reward=(wb.rewards.Correct(), Near()))
    plan = profile.plan({"plain": "grpo", "graded": graded}, rounds=1, repetitions=2)
    assert plan["cannot_say"].str.contains("texts").tolist() == [False, True]


# What people have


def written(tmp_path, rows, kind="jsonl"):
    path = tmp_path / f"rows.{kind}"
    frame = pd.DataFrame(rows)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.slow
def test_rows_of_responses_and_of_problems_say_the_same(tmp_path, kind):
    counts = {"a": 1, "b": 4, "c": 0}
    responses = [
        {"question": problem, "is_correct": number < right, "response_length": 10 + number}
        for problem, right in counts.items()
        for number in range(4)
    ]
    one = Profile.read(written(tmp_path, responses, kind))
    problems = [{"id": name, "n": 4, "pass_rate": right / 4} for name, right in counts.items()]
    other = Profile.read(written(tmp_path, problems, kind))
    for profile in (one, other):
        assert profile.table["problem"].tolist() == ["a", "b", "c"]
        assert profile.table["correct"].tolist() == [1, 4, 0]
        assert profile.table["rate"].tolist() == [0.25, 1.0, 0.0]
    assert one.lengths().loc["right", "length"] == pytest.approx((10 + 11.5) / 2)
    assert other.lengths().empty
    rates = [{"id": name, "pass_rate": right / 4} for name, right in counts.items()]
    assert (
        Profile.read(written(tmp_path, rates, kind), samples=4).table["samples"].tolist() == [4] * 3
    )


def test_completions_that_trl_logged(tmp_path):
    for step in (9, 10):
        pd.DataFrame(
            {
                "step": [str(step)] * 4,
                "prompt": [
                    [{"role": "user", "content": f"{number}+1="}] for number in (1, 1, 2, 2)
                ],
                "completion": [[{"role": "assistant", "content": "\\boxed{2}"}]] * 4,
                "accuracy_reward": [1.0, 1.0, 0.0, 0.0],
                "advantage": [0.0] * 4,
            }
        ).to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    profile = Profile.read(tmp_path)
    assert profile.table["problem"].tolist() == ["1+1=", "2+1="]
    assert profile.table["correct"].tolist() == [4, 0]
    assert profile.table["samples"].tolist() == [4, 4]
    assert "steps 9 to 10" in profile.notes[0]
    assert profile.table["status"].tolist()[1] == "suspicious"


@pytest.mark.parametrize("name", [None, "uid", "id"])
def test_rollouts_that_verl_dumped(name, tmp_path):
    """The uid of a dump names a response; so may the id of another table."""
    rows = [
        {"input": "1+1=", "output": "2", "gts": "2", "score": score, "step": 1}
        | ({name: f"254e1b0f-9fc5-464f-88c8-0c9364dffcfb-0_{number}_0"} if name else {})
        for number, score in enumerate((1.0, -1.0, 1.0))
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = Profile.read(tmp_path).table
    assert table[["problem", "samples", "correct", "answer"]].values.tolist() == [
        ["1+1=", 3, 2, "2"]
    ]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"problem": "a", "correct": 1}, {"problem": "b", "correct": 2}], {}, "row 1: correct is"),
        ([{"problem": "a", "correct": 1}, {"problem": " ", "correct": 1}], {}, "row 1: problem is"),
        ([{"problem": "a", "reward": "x"}], {}, "row 0: reward is 'x'"),
        ([{"problem": "a", "reward": 0.3}], {}, "solved=1.0"),
        ([{"problem": "a", "samples": 4, "correct": 5}], {}, "row 0: 5 of 4"),
        ([{"problem": "a", "samples": 4, "correct": 1}] * 2, {}, "row 1: problem 'a' occurs twice"),
        ([{"problem": "a", "pass_rate": 0.5}], {}, "samples=16"),
        ([{"problem": "a", "samples": 3, "rate": 0.5}], {}, "row 0: 1.5 of 3"),
        ([{"problem": "a", "corect": 1}], {}, "'corect'"),
        ([{"problem": "a", "correct": 1}], {"columns": {"reward": "scor"}}, "'scor'"),
        ([{"problem": "a", "correct": 1}], {"columns": {"rewrd": "correct"}}, "'reward'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(tmp_path, rows, options, message):
    path = written(tmp_path, rows)
    with pytest.raises(ValueError, match=message):
        Profile.read(path, **options)


@pytest.mark.parametrize(
    ("options", "correct"),
    [
        ({}, [4]),
        ({"columns": {"reward": "format"}}, [0]),
        ({"columns": {"reward": "score"}, "solved": 0.5}, [2]),
        ({"solved": 0.75}, [1]),
    ],
)
def test_the_verdict_that_was_asked_for_counts_and_no_other(tmp_path, options, correct):
    rows = [
        {"problem": "a", "acc": 1, "format": 0, "score": score} for score in (0.25, 0.5, 0.75, 0)
    ]
    assert Profile.read(written(tmp_path, rows), **options).table["correct"].tolist() == correct
    shares = written(tmp_path, [{"problem": "a", "acc": 0.25, "n": 4}])
    assert Profile.read(shares, columns={"rate": "acc"}).table["correct"].tolist() == [1]


def test_rows_of_responses_that_say_how_many_there_are_are_no_problems(tmp_path):
    rows = [
        {"id": number, "prompt": f"q{number // 4}", "n": 4, "correct": number % 2}
        for number in range(8)
    ]
    with pytest.raises(ValueError, match="row 1: prompt 'q0' occurs twice"):
        Profile.read(written(tmp_path, rows))
    # A data set may have a problem twice.
    twice = [{"id": number, "prompt": "q", "n": 4, "correct": number} for number in range(4)]
    assert Profile.read(written(tmp_path, twice)).table["correct"].tolist() == [0, 1, 2, 3]


def test_graded_rewards_need_a_threshold(tmp_path):
    path = written(tmp_path, [{"problem": "a", "reward": reward} for reward in (0.2, 1.2, 1.0)])
    assert Profile.read(path, solved=1.0).table["correct"].tolist() == [2]


def test_a_reward_that_misses_the_threshold_by_rounding_is_right(tmp_path):
    # .6 + .3 is .8999999999999999; and .7 in single precision, as reward models give it.
    for threshold, reward in ((0.9, 0.6 + 0.3), (0.7, float(np.float32(0.7)))):
        path = written(
            tmp_path, [{"problem": "a", "reward": each} for each in (reward, 0.0)], "parquet"
        )
        assert Profile.read(path, solved=threshold).table["correct"].tolist() == [1]


def test_a_name_of_several_prompts_is_said(tmp_path):
    """As where the rows of two data sets are numbered from 0 each."""
    rows = [{"id": 0, "prompt": prompt, "correct": 1} for prompt in ("1+1=", "2+2=")] * 2
    assert "1 problems by their id have several prompts" in str(
        Profile.read(written(tmp_path, rows))
    )


def test_a_profile_becomes_a_pool(tmp_path):
    rows = [
        {"id": f"p{right}", "prompt": f"{right}?", "answer": "1", "samples": 16, "correct": right}
        for right in (0, 4, 8, 12, 16)
    ]
    pool = Profile.read(written(tmp_path, rows)).problems(low=0.1, high=0.9)
    assert [problem.id for problem in pool] == ["p4", "p8", "p12"]
    assert pool[0].level > pool[1].level > pool[2].level
    with pytest.raises(ValueError, match=r"low=1.0"):
        Profile.read(written(tmp_path, rows)).problems(low=1.0, high=1.0)


# Sampling


@pytest.mark.slow
def test_a_lab_is_sampled_and_its_responses_are_kept(tmp_path):
    lab = small_lab()
    out = tmp_path / "profile"
    profile = wb.profile(lab, samples=4, problems=10, out=out)
    assert profile.table["samples"].tolist() == [4] * 10
    assert len(profile.rollouts) == 40
    assert set(profile.table["problem"]) <= {problem.id for problem in lab.problems}
    evals = wb.evaluation.evaluate(
        lab.make_policy(), lab.problems, lab.verifier, 4, sampling=lab.sampling, greedy=False
    ).set_index("problem")
    same = evals.loc[profile.table["problem"]]
    assert profile.table["correct"].tolist() == same["correct"].tolist()
    stored = Profile.read(out)
    pd.testing.assert_frame_equal(profile.table, stored.table)
    with pytest.raises(ValueError, match="other samples"):
        wb.profile(lab, samples=5, problems=10, out=out)
    assert len(profile.problems(0, 1)) <= 10
    assert profile.plot().get_xlabel() == "success rate"


@pytest.mark.slow
def test_a_part_that_is_not_what_was_asked_is_named(tmp_path):
    out = tmp_path / "out"
    wb.profile(small_lab(), samples=2, problems=12, out=out)
    first, second = sorted(out.glob("*.parquet"))
    parts = {path: path.read_bytes() for path in (first, second)}
    rows = pd.read_parquet(second)
    cut = rows.iloc[:-1].to_parquet()
    doubled = pd.concat([rows, rows]).to_parquet()
    wrong = [(first, parts[second]), (second, parts[first]), (second, cut), (second, doubled)]
    for path, data in wrong:
        path.write_bytes(data)
        with pytest.raises(wb.records.RecordError, match=f"{path.name}.*than asked"):
            wb.Profile.read(out)
        path.write_bytes(parts[path])
    # The order of the rows says nothing, and parts that are not made yet are said.
    second.write_bytes(rows[::-1].to_parquet())
    assert wb.Profile.read(out).table["samples"].tolist() == [2] * 12
    second.unlink()
    assert wb.Profile.read(out).notes == ["4 problems are not sampled yet"]


STATUS = "ok"


class Lenient(Verifier):
    """A verifier of one's own that says the same of every response."""

    def judge(self, responses, answers):
        return Scores.of([STATUS] * len(responses))


@pytest.mark.slow
def test_responses_of_other_weights_or_judged_by_other_code_are_refused(tmp_path, monkeypatch):
    """As where a checkpoint was overwritten, or a mistake in a verifier was mended."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    short = Sampling(max_new_tokens=8)
    lab = wb.labs.transformers(str(model), wb.problems.from_rows(ROWS), sampling=short)
    wb.profile(lab, samples=2, out=tmp_path / "weights")
    wb.profile(lab, samples=2, out=tmp_path / "weights")
    shutil.rmtree(model)
    changed_weights(model)
    with pytest.raises(ValueError, match=r"it has responses of other policy;"):
        wb.profile(lab, samples=2, out=tmp_path / "weights")
    own = dataclasses.replace(small_lab(), verifier=Lenient())
    wb.profile(own, samples=2, problems=3, out=tmp_path / "code")
    monkeypatch.setitem(globals(), "STATUS", "wrong")
    with pytest.raises(ValueError, match=r"it has responses of other code;"):
        wb.profile(own, samples=2, problems=3, out=tmp_path / "code")


@pytest.mark.slow
def test_a_flipped_bit_of_a_profile_is_named_or_changes_nothing(tmp_path):
    out = tmp_path / "out"
    whole = wb.profile(small_lab(), samples=2, problems=3, out=out)
    rng = np.random.default_rng(0)
    for path in (out / "000000.parquet", out / "profile.json"):
        content = path.read_bytes()
        named = 0
        for place in rng.choice(len(content), 150, replace=False).tolist():
            flipped = bytearray(content)
            flipped[place] ^= 1 << rng.integers(8)
            path.write_bytes(flipped)
            try:
                found = Profile.read(out)
            except wb.records.RecordError as error:
                named += str(out) in str(error)
                continue
            pd.testing.assert_frame_equal(found.table, whole.table)
            pd.testing.assert_frame_equal(found.rollouts, whole.rollouts)
        assert named > 75
        path.write_bytes(content)


@pytest.mark.long
def test_a_killed_profile_goes_on(tmp_path):
    whole = wb.profile(small_lab(), samples=4)
    out = tmp_path / "profile"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)])
    while len(list(out.glob("*.parquet"))) < 2 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert there
    part = Profile.read(out)
    assert part.notes == ([] if len(part.table) == 32 else [part.notes[0]])
    again = wb.profile(small_lab(), samples=4, out=out)
    pd.testing.assert_frame_equal(whole.table, again.table)
    assert all(path.stat().st_mtime_ns == then for path, then in there.items())


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_dies(tmp_path):
    out = tmp_path / "profile"
    with at(last=20) as (_, url), pytest.raises(ServerError):
        wb.profile(lab_at(url), samples=2, problems=24, out=out)
    part = Profile.read(out)
    assert 0 < len(part.table) < 24
    assert "not sampled yet" in part.notes[0]
    with at() as (_, url):
        whole = wb.profile(lab_at(url), samples=2, problems=24, out=out)
    assert len(whole.table) == 24


@pytest.mark.slow
def test_the_command_says_what_the_guide_shows(tmp_path, monkeypatch):
    guide = Path("docs/guides/before-training.md").read_text()
    shown = re.search(r"```text\n(.*?)\n```", guide, re.DOTALL)[1]
    made = re.search(r"```python\n(.*?)profile = ", guide, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(made, {})
    command = ["profile", "rates.csv", *(f"--method={name}" for name in ("grpo", "ar3po"))]
    command.append("--method=knapsack")
    assert CliRunner().invoke(main, command).output.strip() == shown
    told = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert [row["method"] for row in told["plan"]] == ["grpo", "ar3po", "knapsack"]
    assert (len(told["problems"]), told["best_n"], told["notes"]) == (120, 7, [])
    assert told["groups"][2]["no_gradient"] == pytest.approx(0.37, abs=1e-3)
    wrong = CliRunner().invoke(main, ["profile", "rates.csv", "--method", "grop"])
    assert wrong.exit_code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples=0"),
        ({"problems": 33}, "problems=33"),
        ({"problems": "x"}, "problems='x'"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wb.profile(small_lab(), **options)
