"""Trials: real ones of a few short runs, their deaths, and what is refused."""

import dataclasses
import html
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import timeless
from jupyter_client.manager import start_new_kernel
from trial_script import Backwards, Broken, EverySecond, Everything, Leaving, lab, make
from typer.testing import CliRunner

import workbench as wb
from workbench.__main__ import main
from workbench.analysis.cost import CostModel
from workbench.analysis.curves import Curve
from workbench.records import RecordError
from workbench.trials import Trial
from workbench.trials.state import TrialRun, TrialState
from workbench.trials.trial import DIVERGED
from workbench.trials.tuning import FIRST_SEED, Point
from workbench.utils.numbers import duration

ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).with_name("trial_script.py")
NOTEBOOK_IMPORTS = """\
import numpy as np
from trial_script import make
from workbench.slots import Selection, Slot
"""


def script(out, arm="class", lines=None, status=0):
    """Run the script, and return what it said; SIGKILL once so many of its runs are made."""
    command = [sys.executable, "-u", str(SCRIPT), str(out), arm]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if lines is not None and sum("done in" in each for each in said) == lines:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == status, "".join(said)
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The trial of the script, undisturbed: its directory and what it said."""
    out = tmp_path_factory.mktemp("trials") / "whole"
    return out, script(out)


@pytest.mark.long
def test_a_class_of_a_notebook_is_tuned_and_compared_with_the_baseline(whole):
    out, said = whole
    [sentence] = [line for line in said if line.startswith("sentence: ")]
    # What the caller prints was not said already.
    assert sum(sentence.removeprefix("sentence: ") in line for line in said) == 1
    plan = json.loads((out / "trial.json").read_text())
    assert [*plan["arms"]] == ["grpo", "EverySecond"]
    assert plan["arms"]["EverySecond"]["method"]["selector"] == {"is": "__main__.EverySecond"}
    for label in plan["arms"]:
        tuned = sorted(path.name for path in (out / "tuning" / label).iterdir())
        assert tuned == ["lr=0.00354", "lr=0.005", "lr=0.00707"]
        runs = [wb.load(out / "runs" / label / f"seed-{seed}") for seed in range(2)]
        assert [record.manifest["seed"] for record in runs] == [0, 1]
        assert len({record.manifest["arguments"]["learning_rate"] for record in runs}) == 1
        of_tuning = wb.load(out / "tuning" / label / "lr=0.005" / f"seed-{FIRST_SEED}")
        # A tuning run keeps its rounds and evaluations, not its rollouts.
        assert len(of_tuning.rounds) == 4 and not len(of_tuning.rollouts())
    # The code of the class is nowhere on the disk.
    texts = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert not any(b"np.arange(0, len(rollouts), 2)" in text for text in texts)


@pytest.mark.long
def test_a_trial_that_is_killed_goes_on_by_the_same_call_and_ends_the_same(whole, tmp_path):
    out, said = whole
    again = tmp_path / "apart" / "again"
    script(again, lines=3, status=-signal.SIGKILL)
    second = script(again)
    assert second[-1] == said[-1]
    # What was made before the death is not made again.
    made = sum("done in" in line for line in second)
    assert made <= sum("done in" in line for line in said) - 3
    for path in wb.records.record_paths(out):
        name = path.relative_to(out)
        ours, theirs = wb.load(again / name).rounds, wb.load(path).rounds
        pd.testing.assert_frame_equal(timeless(ours), timeless(theirs), check_exact=True)


@pytest.mark.long
def test_a_run_of_a_trial_that_was_damaged_is_named_and_made_again(whole, tmp_path):
    out, said = whole
    again = tmp_path / "apart" / "again"
    shutil.copytree(out, again)
    record = again / "runs" / "EverySecond" / "seed-1"
    (table,) = record.glob("evals-*.parquet")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(bytes(content))
    second = script(again)
    assert second[-1] == said[-1]
    assert sum("done in" in line for line in second) == 1
    assert any("evals-" in line and "EverySecond/seed-1 is made again" in line for line in second)
    ours, theirs = (wb.load(place / "runs/EverySecond/seed-1").rounds for place in (again, out))
    pd.testing.assert_frame_equal(timeless(ours), timeless(theirs), check_exact=True)


@pytest.mark.long
def test_a_cell_of_a_notebook_is_interrupted_and_run_again(whole, tmp_path):
    """By the button, while workers run: the kernel lives, and the same cell goes on to the end."""
    _, said = whole
    manager, client = start_new_kernel(cwd=str(SCRIPT.parent))

    def run(code, lines=None):
        """Run a cell, and return its output and its error; interrupt it after so many runs."""
        client.execute(code)
        text, error = "", ""
        while True:
            message = client.get_iopub_msg(timeout=300)
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            if message["msg_type"] == "error":
                error = content["ename"]
            if lines is not None and text.count("done in") >= lines:
                manager.interrupt_kernel()
                lines = None
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return text, error

    # The class is one of the notebook's own, with the name and the code of the script's.
    cell = inspect.getsource(EverySecond)
    cell += f"print('sentence:', make({str(tmp_path / 'apart' / 'again')!r}, EverySecond))"
    try:
        assert run(NOTEBOOK_IMPORTS) == ("", "")
        interrupted, error = run(cell, lines=3)
        assert error == "KeyboardInterrupt" and "sentence:" not in interrupted
        text, error = run(cell)
        assert not error
        assert text.strip().splitlines()[-1] == said[-1].strip()
        made = [each.count("done in") for each in (interrupted, text, "".join(said))]
        # A run that was under way when the cell was interrupted is made again or gone on with.
        assert made[0] >= 3 and made[0] + made[1] <= made[2]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.long
def test_another_trial_beside_it_uses_the_runs_of_the_baseline_again(whole):
    out, _ = whole
    other = out.with_name("other")
    said = script(other, "few")
    made = [line for line in said if "done in" in line]
    assert made and not any("/grpo/" in line for line in made)
    assert any(line.endswith("were used again\n") for line in said)
    assert not (other / "runs" / "grpo").exists()


@pytest.mark.long
def test_an_edited_class_is_refused_before_anything_runs(whole):
    out, _ = whole
    said = script(out, "edited", status=1)
    assert "holds another trial" in said[-1] and "'EverySecond'" in said[-1]
    assert not any("done in" in line for line in said)


@pytest.mark.long
def test_the_command_ends_in_the_sentence_the_tables_and_the_page(tmp_path, monkeypatch):
    problems = wb.labs.tiny(pool=32, levels=(1, 2), held_out=0).problems
    small = dataclasses.replace(lab(), problems=problems)
    # In the tiny lab a trial takes minutes.
    monkeypatch.setattr("workbench.config.lab", lambda name, options: small)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial_methods.py").write_text(
        "import workbench as wb\n"
        "def mine():\n"
        "    return wb.methods.grpo().but(name='mine', advantage=wb.advantages.LeaveOneOut())\n"
    )
    command = ["trial", "trial_methods:mine", "--out", "out", "--rounds", "4", "--seeds", "2", "2"]
    command += ["--rate", "5e-3", "--tuning-seeds", "1", "--target", "0.48", "--jobs", "2"]
    command += ["--first-seed", "7"]
    told = CliRunner().invoke(main, command)
    table = pd.read_csv(tmp_path / "out" / "trial.csv")
    status = {"better": 0, "alike": 10, "open": 11, "worse": 12}[table["verdict"][0]]
    assert told.exit_code == status, told.output
    assert table["arm"].tolist() == ["mine"] and table["sentence"][0] in told.output
    tuning = pd.read_csv(tmp_path / "out" / "tuning.csv")
    assert tuning.groupby("arm").size().to_dict() == {"grpo": 3, "mine": 3}
    assert set(tuning["seed"]) == {FIRST_SEED + 7}
    made = {path.name for path in (tmp_path / "out" / "runs" / "mine").iterdir()}
    assert made == {"seed-7", "seed-8"}
    assert table["sentence"][0] in html.unescape((tmp_path / "out" / "trial.html").read_text())
    again = CliRunner().invoke(main, [*command, "--json"])
    data = json.loads(again.stdout)
    assert [row["arm"] for row in data["arms"]] == ["mine"] and len(data["tuning"]) == 6
    assert data["status"] == again.exit_code == status and data["ledger"] is None
    # The keys are those of the page for programs.
    page = (ROOT / "docs" / "guides" / "programs.md").read_text()
    [listed] = re.findall(r"\| `trial` \| (.*) \|", page)
    assert [*data] == listed.split(", ")
    assert {"forecast", "ceiling_high", "baseline_forecast_low", "sentence"} <= data["arms"][
        0
    ].keys()


# What is refused, or told at once


@pytest.mark.parametrize("arms", [["grpo"], ["pods", "pods"], ["pods", "workbench.methods:pods"]])
def test_the_command_names_two_arms_of_one_label_as_a_shell_can_mend_it(tmp_path, arms):
    out = tmp_path / "out"
    told = CliRunner().invoke(main, ["trial", *arms, "--against", "grpo", "--out", str(out)])
    assert told.exit_code == 1
    assert "counting the baseline" in told.output and "{" not in told.output
    assert not out.exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"arms": []}, "arms"),
        ({"seeds": 1}, "seeds=1"),
        ({"evaluate_every": -3}, "evaluate_every=-3"),
        ({"evaluate_every": 2.5}, "evaluate_every=2.5"),
        ({"seeds": (5, 3)}, "seeds="),
        ({"seeds": 8.0}, "seeds=8"),
        ({"measure": "seconds"}, "measure='seconds'"),
        ({"measure": "steps"}, "measure='steps'"),
        ({"target": 1.5}, "target=1.5"),
        ({"rates": [-1.0]}, "rates"),
        ({"rates": 0.001}, "rates=0.001"),
        ({"problems_per_round": 0}, "problems_per_round=0"),
        ({"rounds": 1}, "rounds=1"),
        ({"lab": wb.labs.tiny(pool=16, held_out=0)}, "lab: held-out problems"),
        ({"lab": wb.labs.tiny(pool=16, held_out=4)}, "problems_per_round=32"),
        ({"level": 0.0}, "level=0"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_written(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Trial(**{"arms": "pods", "out": tmp_path / "trial", **options})
    assert not (tmp_path / "trial").exists()


def test_a_lab_that_nobody_describes_is_evaluated_with_few_samples(tmp_path):
    """With all 24 a run of a default trial takes a fifth longer."""
    samples = {
        name: Trial("pods", out=tmp_path / name, lab=lab).settings.lab.samples
        for name, lab in {"none": None, "name": "tiny", "lab": wb.labs.tiny()}.items()
    }
    assert samples == {"none": 8, "name": 8, "lab": 24}


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else than a trial"):
        Trial("pods", out=tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"settings": {}, "arms": 5}'])
def test_a_plan_that_cannot_be_read_is_named(content, tmp_path):
    path = tmp_path / "trial.json"
    # A pipe, from which nothing would ever come.
    os.mkfifo(path) if content is None else path.write_text(content)
    with pytest.raises(RecordError, match=r"trial\.json: cannot be read"):
        Trial("pods", out=tmp_path)


def test_the_baseline_under_another_name_is_told_at_once(tmp_path):
    lines = []
    same = wb.methods.grpo().but(name="mine")
    trial = wb.trial(same, out=tmp_path / "trial", report=lines.append)
    assert trial.table[["arm", "verdict"]].to_numpy().tolist() == [["mine", "same"]]
    assert lines == [line for line in lines if "mine is grpo under another name" in line] != []
    assert str(trial) == "mine is grpo under another name."


def test_a_second_call_with_other_settings_is_refused_also_if_both_were_made_before(tmp_path):
    mine = wb.methods.grpo().but(name="mine")
    first, second = (Trial(mine, out=tmp_path / "trial", rounds=rounds) for rounds in (10, 20))
    first.run()
    with pytest.raises(ValueError, match="rounds"):
        second.run()
    assert json.loads((tmp_path / "trial" / "trial.json").read_text())["settings"]["rounds"] == 10


def test_a_cost_model_of_the_same_name_is_another_measure(tmp_path):
    def priced(price):
        measure = CostModel(price, label="my machine")
        return Trial(wb.methods.grpo().but(name="mine"), out=tmp_path / "trial", measure=measure)

    priced(0.5).run()
    priced(0.5).run()
    with pytest.raises(ValueError, match="measure"):
        priced(2.0)


def test_a_plan_that_was_being_written_when_the_call_died_is_no_other_thing(tmp_path):
    out = tmp_path / "trial"
    out.mkdir()
    (out / "trial.json.writing").write_text("{")
    Trial(wb.methods.grpo().but(name="mine"), out=out).run()
    assert json.loads((out / "trial.json").read_text())["settings"]["rounds"] == 60


def test_any_label_of_one_line_is_an_arm_with_directories_of_its_own(tmp_path):
    labels = ["grpo", "GRPO + prior", "knapsack, shortest", "../../up", "logs"]
    arms = {label: wb.methods.grpo(n=2 + n) for n, label in enumerate(labels[1:])}
    trial = Trial(arms, out=tmp_path / "trial")
    runs = [TrialRun(label, Point(1e-3), seed) for label in labels for seed in (0, FIRST_SEED)]
    cases = [trial.case(run) for run in runs]
    places = {path for case in cases for path in (case.record, case.logs)}
    assert len(places) == 4 * len(labels)
    assert all(path.resolve().is_relative_to(tmp_path / "trial") for path in places)
    assert trial.case(runs[0]).record == tmp_path / "trial" / "runs" / "grpo" / "seed-0"
    assert [case.values["label"] for case in cases[::2]] == labels


def test_the_time_that_is_left_is_a_range_by_what_runs_of_the_tuning_took(tmp_path):
    trial = Trial("pods", out=tmp_path / "trial", jobs=2)
    assert "said once runs have ended" in trial._time([4, 4, 4], False)
    trial._seconds = [(True, 30.0, 10.0)]
    assert trial._time([4, 4, 4], False) == "likely 4, about 80.0 s as runs take here now"
    # Six evaluations in place of five, with as many samples for each problem or more.
    samples = trial.settings.lab.samples / trial.settings.tuning_lab.samples
    pace = 30 + 10 * samples * 6 / 5
    text = trial._time([10, 18, 40], True)
    assert text.startswith(f"likely 18, about {duration(9 * pace)} as runs take here now (in four")
    assert text.endswith(f"10 to 40: {duration(5 * pace)} to {duration(20 * pace)})")
    trial._seconds.append((False, 50.0, 10.0))
    assert f"likely 4, about {duration(120)}" in trial._time([4, 4, 4], True)


class Alike(wb.selectors.All):
    """What GRPO does, as a class of one's own."""


@pytest.mark.parametrize("asked, every", [(None, 12), (7, 7)])
def test_runs_of_the_comparison_are_evaluated_five_times_or_as_often_as_asked(
    asked, every, tmp_path
):
    trial = Trial("pods", out=tmp_path / "trial", rounds=60, evaluate_every=asked)
    values = trial.settings.values("pods", Point(1e-3), 0)
    assert values["evaluate_every"] == every


def test_a_run_of_another_definition_is_refused_in_ones_own_directory_alone(tmp_path):
    trial = Trial("pods", out=tmp_path / "mine", rounds=60)
    run = trial.look().next_runs(1)[0]
    case = trial.case(run)

    def has_diverged(folder, **values):
        logs = folder / case.logs.relative_to(trial.out)
        other = dataclasses.replace(case, logs=logs, values=case.values | values)
        other.end("failed", f"{DIVERGED}: the loss is nan")

    has_diverged(tmp_path / "mine", rounds=61)
    with pytest.raises(ValueError, match="was made there by another definition of 'grpo'"):
        trial.look()
    shutil.rmtree(tmp_path / "mine")
    has_diverged(tmp_path / "beside", rounds=61)
    (tmp_path / "beside" / "trial.json").write_text("{}")
    trial = Trial("pods", out=tmp_path / "mine", rounds=60)
    assert run not in trial.look().found
    has_diverged(tmp_path / "beside")
    assert trial.look().found == {run: None}


@pytest.mark.slow
def test_an_arm_that_a_later_call_leaves_out_stays_in_the_correction(tmp_path, monkeypatch):
    counted = []

    def answers(family, records, *, left_out, **options):
        counted.append((sorted(family), left_out))
        return {}

    monkeypatch.setattr("workbench.trials.answer.answers", answers)
    out = tmp_path / "mine"
    arms = {name: wb.methods.grpo(n=n) for n, name in enumerate(["a", "b, c", "tuned"], 2)}
    out.mkdir()
    Trial(arms, out=out)._write_plan()

    def correction(*names):
        """What the arms of a call are corrected for, were they compared."""
        state = Trial({name: arms[name] for name in names}, out=out).make_state()
        records = {label: {0: None} for label in state.settings.arms}
        vars(state).update(target=0.5, tunings={}, records=records)
        assert state.answers == {}
        return counted.pop()

    # What never came to the comparison has no answer that anybody looked at.
    assert correction("a") == (["a"], 0)
    for folder in (out / "runs" / "a", out / "runs" / "b,%20c", out / "tuning" / "tuned"):
        folder.mkdir(parents=True)
    assert correction("a") == (["a"], 1)
    assert correction("a", "b, c") == (["a", "b, c"], 0)
    assert correction("tuned") == (["tuned"], 2)
    # Runs of a trial beside this one count where they are.
    (out.parent / "beside" / "runs" / "tuned").mkdir(parents=True)
    (out.parent / "beside" / "trial.json").write_text("{}")
    assert correction("a") == (["a"], 2)


@pytest.mark.parametrize("luck", range(8))
def test_an_arm_that_makes_the_runs_of_the_baseline_is_tuned_to_the_same_rate(luck, tmp_path):
    mine = wb.methods.grpo().but(name="mine", selector=Alike())
    state = Trial(mine, out=tmp_path / "trial").look()
    while state.next_runs(1)[0].seed >= FIRST_SEED:
        made = {run: drawn_curve(run, luck) for run in state.next_runs(1)}
        state = TrialState(state.settings, state.found | made)
    assert state.tuning_runs["grpo"].keys() == state.tuning_runs["mine"].keys()
    assert state.tunings["grpo"].best == state.tunings["mine"].best


def drawn_curve(run, luck):
    """The learning curve of a run, the same for all arms."""
    rng = np.random.default_rng([luck, run.seed, round(1e7 * run.point.learning_rate)])
    scores = 0.25 + np.cumsum([0, *rng.uniform(0, 0.12, 4)])
    rounds = 15 * np.arange(5)
    table = pd.DataFrame({"round": rounds[1:], "rollouts": 3840})
    return Curve(run.label, run.seed, rounds, scores, table, Path(run.label))


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "cause"), [(Broken, "KeyError"), (Leaving, "its process ended")])
def test_an_arm_that_cannot_run_is_named_by_its_first_run(arm, cause, tmp_path):
    with pytest.raises(ValueError, match=rf"{arm.__name__}: tuning/.* failed: {cause}"):
        make(tmp_path / "trial", arm)
    # What the baseline has made by then is kept, and other arms would have gone on.
    assert (tmp_path / "trial" / "trial.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("target", [0.05, 0.999])
def test_a_target_that_is_passed_or_out_of_reach_is_named_early(target, tmp_path):
    with pytest.raises(ValueError, match=f"target={target}"):
        make(tmp_path / "trial", "dapo", target=target)
    assert not (tmp_path / "trial" / "runs").exists()


@pytest.mark.slow
def test_a_lab_with_nothing_left_to_learn_is_named_early(tmp_path):
    with pytest.raises(ValueError, match="it is exhausted"):
        make(tmp_path / "trial", "dapo", verifier=Everything())
    assert not (tmp_path / "trial" / "runs").exists()


@pytest.mark.long
def test_an_arm_that_collapses_at_every_rate_is_said_to_and_not_compared(tmp_path):
    arms = {"backwards": wb.methods.grpo().but(advantage=Backwards())}
    trial = make(tmp_path / "trial", arms, rounds=8)
    [row] = trial.table.to_dict("records")
    assert (row["verdict"], row["seeds"]) == ("collapsed", 0)
    assert "at no learning rate did its accuracy rise" in row["sentence"]
    assert not (tmp_path / "trial" / "runs").exists()


@pytest.mark.long
def test_a_baseline_that_collapses_at_every_rate_is_named(tmp_path):
    with pytest.raises(ValueError, match="grpo: at no learning rate did its accuracy rise"):
        make(tmp_path / "trial", "dapo", target=None, rates=[3.0])
