"""The command line and the import, as a newcomer meets them."""

import contextlib
import inspect
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
import typer
import written_records
from conftest import started
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from typer.testing import CliRunner

import workbench as wb
from workbench import config, labs, methods, plots
from workbench.__main__ import main
from workbench.analysis import comparisons
from workbench.cli.train import lab_options, pairs
from workbench.labs import shipped
from workbench.objectives import Objective
from workbench.records import pack
from workbench.trials.trial import Trial
from workbench.utils.names import MORE_PAPERS, PAPERS
from workbench.verifiers.pool import Pool

pytestmark = pytest.mark.slow

SEEDS = str(shipped("runs/tiny-grpo"))
CBS = str(shipped("runs/cbs"))
# The lab of a test that only needs some lab.
SMALL = ["--lab", "base=clean", "--lab", "pool=16", "--lab", "held_out=0"]


COMMANDS = typer.main.get_command(main).commands


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run(method, *arguments, out, rounds=1, problems=4, lab=SMALL):
    """The command `run` in a small lab."""
    size = ["--rounds", rounds, "--problems", problems]
    return invoke("run", method, *lab, *size, *arguments, "--out", out)


def only_line(result):
    """The one line that a command printed which ended with an error."""
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    [line] = result.output.strip().splitlines()
    return line


# quickstart and run


def test_quickstart_leaves_figure_table_and_record(tmp_path, monkeypatch):
    # The lab of the quickstart with fewer evaluation problems.
    lab = labs.tiny(held_out=8, samples=2)
    monkeypatch.setattr(labs, "tiny", lambda: lab)
    out = tmp_path / "run"
    figures = tmp_path / "figures"
    result = invoke("quickstart", "--rounds", 2, "--out", out, "--figures", figures)
    assert result.exit_code == 0, result.output
    names = {path.name for path in figures.iterdir()}
    assert names == {"quickstart.svg", "quickstart.png"}
    assert "avg@2" in result.output
    assert "greedy" in result.output
    assert "notebooks/00_quickstart.ipynb" in result.output
    assert len(wb.load(out).rounds) == 2


def test_run_any_method_with_settings(tmp_path):
    chosen = ["--set", "n=4", "--set", "m=2", "--set", "rule=random"]
    result = run("pods", *chosen, out=tmp_path)
    assert result.exit_code == 0, result.output
    assert "Random(m=2)" in result.output
    assert wb.load(tmp_path).rounds["selected"].tolist() == [8]


def test_run_prints_json_alone(tmp_path):
    result = run("grpo", "--set", "allocator.n=4", "--json", out=tmp_path)
    told = json.loads(result.stdout)
    assert told["rollouts"] == 16
    assert told["held_out"] is None
    assert told["method"] == "grpo"


@pytest.fixture
def from_data(tmp_path):
    """The command `run` on a file of these rows, with the shipped model."""
    lab = ["--lab", "transformers", "--lab", "dtype=float32", "--lab", "device=cpu"]
    lab += ["--lab", "sampling.max_new_tokens=24"]
    model = ["--model", shipped("models/tiny"), "--evaluate-every", 0, "--set", "n=2"]

    def command(rows, *columns, name="train.jsonl"):
        data = tmp_path / name
        data.write_text("\n".join(map(json.dumps, rows)))
        arguments = [*model, "--data", data, *columns]
        return run("grpo", *arguments, out=tmp_path / "run", problems=2, lab=lab)

    return command


def test_run_reads_problems_from_a_file_and_the_record_names_it(from_data, tmp_path):
    rows = [{"question": f"{number}+1=", "gold": number + 1} for number in range(3)]
    result = from_data(rows, "--prompt-column", "question", "--answer-column", "gold")
    assert result.exit_code == 0, result.output
    pool = wb.problems.from_file(tmp_path / "train.jsonl", prompt="question", answer="gold")
    assert pool[1].answer == "2"
    record = wb.load(tmp_path / "run")
    assert set(record.rollouts()["problem"]) < {problem.id for problem in pool}
    assert "no held-out accuracy" in result.output and "--held-out-data" in result.output
    # What the manifest names can be made again.
    resumed = invoke("resume", tmp_path / "run", "--rounds", 2)
    assert resumed.exit_code == 0, resumed.output


def test_what_is_wrong_with_a_file_of_problems_is_one_line(from_data, tmp_path):
    rows = [{"question": "1+1=", "gold": "2"}, {"question": "1+2=", "gold": None}]
    columns = ["--prompt-column", "question", "--answer-column", "gold"]
    line = only_line(from_data(rows, *columns))
    assert "row 1: the gold is None; a text that is not blank, or a number, is needed" in line
    misspelt = only_line(from_data(rows, "--prompt-column", "qestion"))
    assert "no column 'qestion'" in misspelt and "did you mean 'question'" in misspelt
    assert "for the prompt" in misspelt
    misspelt = only_line(from_data(rows, "--prompt-column", "question"))
    assert "for the answer" in misspelt
    assert "a file ending in .jsonl" in only_line(from_data(rows, name="train.txt"))
    lab = ["--lab", "transformers", "--model", "m"]
    missing = run("grpo", "--data", tmp_path / "nowhere.csv", out=tmp_path / "run", lab=lab)
    assert "nowhere.csv" in only_line(missing)
    assert not (tmp_path / "run").exists()


def test_a_verifier_that_cannot_start_is_one_line(from_data, monkeypatch):
    def without_judge(name, **options):
        return Pool("nowhere:make", **options)

    monkeypatch.setattr("workbench.verifiers.math.Pool", without_judge)
    # A fraction is not compared here, but in the verifier's worker.
    line = only_line(from_data([{"prompt": "1/4+1/4=", "answer": "1/2"}]))
    assert "verifier worker did not start" in line and "nowhere" in line


def test_resume_goes_on_with_what_the_record_says(tmp_path):
    assert run("grpo", "--set", "n=4", "--seed", 3, out=tmp_path).exit_code == 0
    result = invoke("resume", tmp_path, "--rounds", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rounds"] == 2
    # Without a number it goes on to the one that was asked for last.
    stopped = wb.Run.resume(tmp_path).rounds(4, progress=False)
    next(stopped)
    stopped.close()
    assert json.loads(invoke("resume", tmp_path, "--json").stdout)["rounds"] == 4
    (tmp_path / "lock.json").unlink()
    assert "--rounds" in only_line(invoke("resume", tmp_path))
    record = wb.load(tmp_path)
    assert record.rounds["rollouts"].tolist() == [16] * 4
    assert record.manifest["seed"] == 3


@pytest.mark.skipif(os.name != "posix", reason="signals")
def command_line(arguments, told):
    """The command line in a process of its own; tells what it says on stderr."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(arguments)
        finally:
            told.send(said.getvalue())


def test_an_interrupt_is_130_and_the_run_goes_on(tmp_path):
    out = tmp_path / "run"
    arguments = ["run", "grpo", *SMALL, "--problems", "4", "--rounds", "100000", "--out", str(out)]
    with started(command_line, arguments) as run:
        ended = time.monotonic() + 240
        while not written_records.rounds_so_far(out) and run.process.is_alive():
            assert time.monotonic() < ended
            time.sleep(0.02)
        os.kill(run.process.pid, signal.SIGINT)
        assert "stopped; the same command goes on" in run.told.recv()
        run.process.join(60)
        assert run.process.exitcode == 130
    assert len(wb.load(out).rounds) >= 1


# Errors


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "magic"], "method='magic': allowed are 'grpo', 'dapo'"),
        (["run", "knapsak"], "did you mean 'knapsack'?"),
        (["run", "pods", "--set", "q=3"], "q: no argument of pods; there are n, m, rule"),
        (["run", "pods", "--set", "n"], "'n': NAME=VALUE is needed"),
        (["run", "grpo", "--set", "n=1"], "n=1"),
        (["run", "cbs", "--set", "flor=0.1"], "flor: no argument of cbs"),
        (["run", "cbs", "--set", "selector.flor=0.1"], "did you mean 'floor'?"),
        (["run", "grpo", "--set", "alocator.n=4"], "alocator: no argument of a method"),
        (["run", "grpo", "--set", "allocator.m=4"], "allocator.m: no argument of Uniform"),
        (["run", "grpo", "--set", "replay.mode=direct"], "replay.mode: no argument of an empty"),
        (["run", "grpo", "--set", "objective.clip.low=1"], "objective.clip.low: no argument of"),
        (["run", "grpo", "--set", "advantage.esp=1"], "advantage.esp: no argument of"),
        (["run", "cbs", "--set", "selector.scope=rond"], "scope='rond': allowed are"),
        (["run", "grpo", "--lab", "heldout=3"], "heldout: no argument of tiny"),
        (["run", "grpo", "--lab", "tiny", "--lab", "unsloth"], "one lab is needed"),
        (["run", "grpo", "--model", "m"], "--lab transformers"),
        (["run", "grpo", "--data", "train.csv"], "--lab transformers"),
        (["run", "grpo", "--lab", "transformers", "--data", "x.csv"], "it needs --model"),
        (["run", "grpo", "--lab", "transformers", "--model", "m"], "it needs --data"),
        (["run", "grpo", "--lab", "unsloth"], "--model NAME_OR_PATH and --data FILE"),
        (["run", "grpo", *SMALL], "problems_per_round=32: the pool has 16 problems"),
        (["show", "nowhere"], "'nowhere': no record there"),
        (["show", SEEDS, "--out", "x.gif3"], "gif3"),
        (["show", CBS, "--out", "x.svg"], "--out shows one method"),
        (["compare", SEEDS], "all are runs of tiny-grpo"),
        (["compare", CBS, "--baseline", "ppo"], "baseline='ppo'"),
        (["compare", CBS, "--x", "parsecs"], "x='parsecs'"),
        (["compare", CBS, "--target", "0.5"], "--target: it has no effect on records alone"),
        (["compare", CBS, "--tuned"], "--tuned: it has no effect on records alone"),
        (
            ["compare", "a=x.csv", "b=y.csv", "--budget", "5"],
            "--budget: it has an effect on records",
        ),
        (["compare", "a=lr=1/x.csv", "b=y.csv"], "path='lr=1/x.csv': there is no such file"),
        (["ledger", "nowhere"], "nowhere: there is no such directory"),
        (["profile", "x.csv", "--out", "y"], "--out: it has no effect where a PATH is read"),
        (["profile", "--solved", "1"], "--solved: it has no effect where a lab is asked"),
        (["compare", "nowhere", "neither"], "path='nowhere': there is no such file or directory"),
        (["compare", CBS, "--x", "round", "--budget", "1000"], "was last evaluated at 240 round"),
        (["resume", "nowhere", "--rounds", "3"], "nowhere: no record here"),
        (["resume", f"{SEEDS}/seed-0", "--rounds", "300"], "it can be read, but"),
        (["resume", SEEDS], f"there are 5 below it, such as {SEEDS}/seed-0"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "run":
        arguments = [*arguments, "--out", "x"]
    line = only_line(invoke(*arguments))
    assert line.startswith("error: ")
    assert message in line
    assert not list(tmp_path.iterdir()), "nothing is written before the arguments are right"


def test_usage_errors_are_typers():
    result = invoke("quickstart", "--rounds", "0")
    assert result.exit_code == 2
    assert "--rounds" in result.output
    for wrong in (["compare", CBS, "--budget", "-1"], ["comparr"], ["show"], ["resume"]):
        assert invoke(*wrong).exit_code == 2


# Settings


def made(name, *options):
    """The method that `run NAME --set OPTION ...` makes."""
    chosen = pairs(options)
    arguments = {key: value for key, value in chosen.items() if "." not in key}
    dotted = {key: value for key, value in chosen.items() if "." in key}
    return config.method(name, arguments, dotted)


def test_settings_reach_every_kind_of_slot():
    both = made("cbs", "selector.scope=round", "allocator.n=16")
    assert repr(both.selector) == repr(methods.cbs(scope="round").selector)
    assert repr(both.allocator) == repr(methods.cbs(n=16).allocator)
    assert repr(made("grpo", "objective.kl=0.1", "objective.clip=0.1,0.2", "n=4")) == repr(
        methods.grpo(4, objective=Objective(clip=(0.1, 0.2), kl=0.1))
    )
    knapsack = made("knapsack", "info_gain=FALSE", "allocator.low=3").allocator
    assert knapsack.info_gain is False
    assert knapsack.low == 3
    assert made("knapsack", "allocator.rates.kind=epoch").allocator.rates.kind == "epoch"
    overlong = made("dapo", "reward.overlong.buffer=0.5").reward
    assert repr(overlong) == repr(methods.dapo(overlong=0.5).reward)
    advantage = made("aero", "advantage.alpha=2").advantage
    assert (advantage.alpha, advantage.beta) == (2, 1.0)
    assert made("ar3po", "mode=none").replay is None


def test_values_are_literals_words_and_texts():
    assert pairs(["a=[1, 2]", "b=x=y", "c=", "d=None", "e=TRUE", "f=1e-3"]) == {
        "a": [1, 2],
        "b": "x=y",
        "c": "",
        "d": None,
        "e": True,
        "f": 0.001,
    }
    # A text that would be code stays a text.
    assert pairs(["a=__import__('os')"]) == {"a": "__import__('os')"}


def test_options_of_a_lab_may_be_arguments_of_an_argument():
    name, options = lab_options(["transformers", "sampling.temperature=0.5", "dtype=float32"])
    assert name == "transformers"
    assert options == {"sampling": {"temperature": 0.5}, "dtype": "float32"}
    with pytest.raises(ValueError, match="sampling has a value of its own already"):
        lab_options(["sampling=3", "sampling.temperature=1"])


# compare and show


def test_compare_prints_a_table_or_json_and_draws(tmp_path):
    paths = [f"{CBS}/grpo-full", f"{CBS}/grpo-round"]
    arguments = ["compare", *paths, "--x", "rollouts"]
    figure = tmp_path / "deep" / "fig.svg"
    result = invoke(*arguments, "--out", figure)
    assert result.exit_code == 0, result.output

    told = json.loads(invoke(*arguments, "--json").stdout)
    assert told["budget"] == 240 * 128
    assert told["baseline"] == "grpo-full"
    assert list(told["labels"]) == ["grpo-full", "grpo-round"]
    assert told["labels"]["grpo-full"]["difference"] is None

    chosen = told["labels"]["grpo-round"]
    expected = comparisons.at_budget(comparisons.load_all(*paths), "rollouts", baseline="grpo-full")
    assert chosen == expected.loc["grpo-round"].to_dict()
    assert f"{chosen['mean']:.3f} ± {chosen['half']:.3f}" in result.output
    assert f"{chosen['difference']:+.3f}" in result.output
    assert "grpo-round (8 seeds)" in figure.read_text()

    other = invoke(*arguments, "--baseline", "grpo-round", "--y", "greedy", "--budget", "6400")
    assert other.exit_code == 0
    assert "minus grpo-round" in other.output
    assert "at 6,400 rollouts" in other.output


def test_paths_of_other_runs_may_hold_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, end in (("lr=1", 0.5), ("lr=2", 0.7)):
        Path(name).mkdir()
        for seed in range(2):
            rows = [f"{step},{end * step + seed / 10}" for step in range(3)]
            Path(name, f"seed-{seed}.csv").write_text("\n".join(["step,reward", *rows]))
    done = invoke("compare", "lr=1", "mine=lr=2", "--json")
    assert [row["arm"] for row in json.loads(done.stdout)["arms"]] == ["mine"]
    drawn = invoke("compare", "lr=1", "mine=lr=2", "--out", "figure.svg")
    assert drawn.output.splitlines()[-1].split() == ["figure", "figure.svg"]


def test_compare_counts_rollouts_unless_told_otherwise():
    told = json.loads(invoke("compare", f"{CBS}/grpo-full", f"{CBS}/grpo-round", "--json").stdout)
    assert told["x"] == "rollouts"


def test_runs_lists_sorts_and_filters():
    told = json.loads(invoke("runs", CBS, "--sort=-accuracy", "--json").stdout)["runs"]
    accuracies = [row["accuracy"] for row in told]
    assert len(told) > 8 and accuracies == sorted(accuracies, reverse=True)
    some = json.loads(invoke("runs", CBS, "--where", "seed=3", "--json").stdout)["runs"]
    assert {row["seed"] for row in some} == {3}
    assert "--sort='speed'" in only_line(invoke("runs", CBS, "--sort", "speed"))


def test_compare_says_the_samples_of_an_accuracy():
    result = invoke("compare", f"{CBS}/grpo-full", f"{CBS}/grpo-round", "--x", "round")
    [first, *_] = result.output.splitlines()
    assert re.fullmatch(r"held-out accuracy \(avg@24\) at \d+ rounds", first)


def test_compare_with_one_seed_an_arm_has_no_interval(tmp_path):
    for label in ("grpo-full", "grpo-round"):
        written_records.write(tmp_path, label)
    result = invoke("compare", tmp_path, "--baseline", "grpo-full")
    assert "nan" not in result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("grpo-round")]
    assert re.search(r"[+-]0\.\d{3} +needs two seeds +\d+% +open$", line)


def test_a_run_that_stopped_before_its_next_evaluation_is_shown_once(tmp_path):
    lab = labs.tiny(pool=16, base="clean", held_out=4, samples=2)
    for name in ("grpo", "gspo"):
        going = wb.Run(
            lab, getattr(methods, name)(4), problems_per_round=4, out=tmp_path / name
        ).rounds(4, progress=False)
        next(going)
        going.close()
    shown = invoke("show", tmp_path / "grpo").output
    [heads] = [line for line in shown.splitlines() if line.startswith("held-out accuracy")]
    assert heads.split() == ["held-out", "accuracy", "round", "0"]
    [greedy] = [line for line in shown.splitlines() if line.startswith("greedy")]
    assert len(greedy.split()) == 2
    assert "let it go on to its next evaluation" in only_line(invoke("compare", tmp_path))


def test_seeds_that_differ_have_no_difference(tmp_path):
    for label, seed in (("a", 0), ("b", 1)):
        written_records.write(tmp_path, label, seed)
    result = invoke("compare", tmp_path, "--out", tmp_path / "fig.png")
    assert result.exit_code == 0
    assert "no seed in common" in result.output
    told = json.loads(invoke("compare", tmp_path, "--json").stdout)
    assert told["labels"]["b"]["mean"] > 0


def test_show_reads_a_record_that_was_packed_without_levels(tmp_path):
    shutil.copytree(SEEDS, tmp_path / "runs")
    pack(tmp_path / "runs", None, ())
    result = invoke("show", tmp_path / "runs" / "seed-0")
    assert result.exit_code == 0
    assert "avg@8" in result.output and "level 1" not in result.output
    with pytest.raises(ValueError, match="levels"):
        plots.accuracy_by_level(wb.load(tmp_path / "runs" / "seed-0"))


@pytest.mark.long
def test_report_writes_a_page(tmp_path):
    page = tmp_path / "deep" / "page.html"
    result = invoke("report", f"{SEEDS}/seed-0", "--out", page)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("selected", "share", "words"),
    [
        ((90, 0, 10), 0.14, "of those trained on 14% with a gradient"),
        ((0, 0, 0), None, "none was trained on"),
    ],
    ids=["rounds of other sizes", "nothing was trained on"],
)
def test_show_counts_the_share_with_a_gradient_over_all_that_was_trained_on(
    tmp_path, selected, share, words
):
    ratios = [(0.1, math.nan, 0.5)[i] if n else math.nan for i, n in enumerate(selected)]
    columns = {"selected": selected, "effective_gradient_ratio": ratios}
    written_records.write(tmp_path, rollouts=(100, 100, 100), columns=columns)
    path = tmp_path / "a/seed-0"
    assert json.loads(invoke("show", path, "--json").stdout)["records"][0]["effective"] == share
    assert f"rollouts 300, {words}\n" in invoke("show", path).output


def test_show_prints_a_table_or_json_and_writes_a_figure(tmp_path):
    figure = tmp_path / "fig.png"
    result = invoke("show", f"{SEEDS}/seed-0", "--out", figure)
    assert result.exit_code == 0
    assert "level 1, avg@8" in result.output
    assert "rollouts 51200" in result.output
    assert figure.read_bytes().startswith(b"\x89PNG")

    several = invoke("show", SEEDS).output.splitlines()
    assert several[2].split()[:2] == ["runs", "rounds"]
    assert several[3].split()[1:3] == ["5", "200"]

    told = json.loads(invoke("show", SEEDS, "--json").stdout)["records"]
    assert [record["seed"] for record in told] == [0, 1, 2, 3, 4]
    assert told[0]["rounds"] == 200
    curve = wb.load(f"{SEEDS}/seed-0").accuracy()
    assert told[0]["held_out"]["last"]["accuracy"] == curve["accuracy"].iloc[-1]


# Help, completion, import


def examples_of(text):
    """The commands in a help text, split into words."""
    lines = [line.split() for line in text.splitlines() if "python -m workbench " in line]
    return [words[3:] for words in lines]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_has_examples_that_parse(name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    examples = examples_of(result.output)
    assert examples
    for command, *arguments in examples:
        COMMANDS[command].make_context(command, arguments)  # a wrong option raises


# What a function takes that a command cannot, or calls by another name.
OTHERWISE = {
    "run": {"problems_per_round": "problems"},
    "trial": {
        "arms": None,
        "report": None,
        "problems_per_round": "problems",
    },
    "compare": {"runs": "paths"},
    "seeds": {"runs": "paths"},
    "push": {"what": "path"},
}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("run", wb.Run),
        ("trial", Trial),
        ("compare", wb.compare),
        ("seeds", wb.seeds_needed),
        ("push", wb.push_to_hub),
    ],
)
def test_a_command_has_what_its_function_has(name, function):
    renamed = OTHERWISE.get(name, {})
    wanted = {renamed.get(each, each) for each in inspect.signature(function).parameters} - {None}
    assert wanted <= {option.name for option in COMMANDS[name].params}


def test_a_run_of_the_command_line_is_the_run_of_python_with_nothing_said():
    """So the commands of docs/start.md go on with the runs that its Python has made."""
    ours = {option.name: option.default for option in COMMANDS["run"].params}
    for name, argument in inspect.signature(wb.Run).parameters.items():
        if isinstance(argument.default, int):
            assert ours[OTHERWISE["run"].get(name, name)] == argument.default, name


def test_the_options_of_a_run_are_in_its_manifest(tmp_path):
    out = tmp_path / "run"
    given = ["--learning-rate", 1e-4, "--mini-batches", 2, "--evaluate-every", 0]
    given += ["--checkpoint-every", 1, "--tracker", "tensorboard", "--label", "mine"]
    done = run("grpo", *given, out=out)
    assert done.exit_code == 0, done.output
    manifest = wb.load(out).manifest
    kept = {name: manifest["arguments"][name] for name in ("learning_rate", "mini_batches")}
    assert kept == {"learning_rate": 1e-4, "mini_batches": 2}
    assert manifest["arguments"]["checkpoint_every"] == 1
    assert list(wb.load_all(out)) == ["mine"]
    assert list(out.rglob("events.out.*"))


def test_seeds_says_what_seeds_needed_says():
    done = invoke("seeds", SEEDS, "--change", 3, "--json")
    rows = json.loads(done.stdout)["seeds"]
    assert [row["change"] for row in rows] == [3]
    assert rows[0]["seeds"] == wb.seeds_needed(SEEDS, changes=[3])["seeds"].iloc[0]


def test_check_tries_a_value_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ideas_to_check.py").write_text(
        "from workbench import selectors\n"
        "four = selectors.MaxVariance(4)\n"
        "class Same(selectors.MaxVariance): pass\n"
        "class Wrong(selectors.All):\n"
        "    def select(self, rollouts, context): return [0, 0]\n"
        "from workbench.rewards import Boxed\n"
        "part = Boxed()\n"
    )
    for name in ("four", "Boxed", "part"):
        assert json.loads(invoke("check", f"ideas_to_check:{name}", "--json").stdout)
    assert "missing" in only_line(invoke("check", "ideas_to_check:Same"))
    assert "Wrong" in only_line(invoke("check", "ideas_to_check:Wrong"))


@pytest.mark.filterwarnings("ignore::workbench.reports.hub.HubWarning")
def test_push_writes_the_folder_where_there_is_no_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("grpo", out="run").exit_code == 0
    done = invoke("push", "run", "me/mine", "--json")
    assert json.loads(done.stdout) == {"pushed": str(Path("hub", "me", "mine"))}
    assert Path("hub", "me", "mine", "manifest.json").exists()


def test_the_help_lists_every_command_with_a_sentence():
    result = invoke("--help")
    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in result.output
        assert command.help.partition("\n")[0].endswith(".")


def test_no_sentence_is_cut_where_a_terminal_has_room_for_it():
    command = [sys.executable, "-m", "workbench", "--help"]
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    sentence = COMMANDS["quickstart"].help.partition("\n")[0]
    assert f"  quickstart  {sentence}\n" in done.stdout


def test_completion():
    code = "from workbench.__main__ import main; main(prog_name='workbench')"
    asked = {
        **os.environ,
        "_WORKBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "workbench run a",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True
    )
    names = [name for name in (*PAPERS, *MORE_PAPERS) if name.startswith("a")]
    assert done.stdout.split() == names


HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "unsloth",
    "numpy",
    "pandas",
    "matplotlib",
    "jinja2",
    "scipy",
}


def loaded_by(code, heavy):
    """Which of the heavy packages are loaded after the code has run."""
    ending = f"\nimport sys\nprint(sorted(set({sorted(heavy)!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_help_and_completion_take_nothing_heavy():
    code = "from workbench.__main__ import main\nmain(['run', '--help'], standalone_mode=False)"
    assert loaded_by(code, HEAVY) == "[]"


def test_import_takes_nothing_heavy():
    assert loaded_by("import workbench", HEAVY) == "[]"


def test_every_name_is_there():
    assert all(getattr(wb, name) is not None for name in wb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wb.nothing


# Any words

WORDS = st.sampled_from(
    ["", *"abc -1 0 1.5 nan inf 1e400 none true [] {} 'x' 2 (1,2) a.b MaxVariance Uniform".split()]
)
NAMES = st.sampled_from(
    (
        "n m k low rule mode scope prior clip keep name allocator.n selector.m advantage.eps "
        "objective.clip allocator.rates.kind reward selector selector. ."
    ).split()
)
LAB_NAMES = st.sampled_from(
    ["levels", "held_out", "samples", "learning_rate", "seed", "threads", "nothing", "size"]
)
OPTIONS = st.sampled_from(["--problems", "--seed", "--evaluate-every", "--rounds"])


@pytest.mark.long
@settings_of_hypothesis(max_examples=40)
@given(
    st.sampled_from(PAPERS),
    st.lists(st.tuples(NAMES, WORDS), max_size=2),
    st.lists(st.tuples(LAB_NAMES, WORDS), max_size=1),
    OPTIONS,
    st.sampled_from(["1", "2", "-1", "x", ""]),
)
def test_no_words_on_the_command_line_end_in_a_traceback(method, chosen, lab, option, value):
    arguments = [option, value]
    for flag, given_pairs in (("--set", chosen), ("--lab", lab)):
        for name, word in given_pairs:
            arguments += [flag, f"{name}={word}"]
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, *arguments, out=out, problems=2)
    assert result.exit_code in (0, 1, 2), arguments
    assert result.exception is None or type(result.exception) is SystemExit, arguments
    if result.exit_code == 1:
        assert any(line.startswith("error: ") for line in result.output.splitlines()), arguments


@pytest.mark.parametrize(
    "command",
    [
        ["show", "data/runs/tiny-grpo/seed-0"],
        ["compare", "data/runs/head-to-head/grpo", "data/runs/head-to-head/cbs-round"],
        ["doctor"],
        ["ledger", "data"],
    ],
    ids=lambda command: command[0],
)
def test_json_has_the_keys_of_the_page_for_programs(command):
    page = Path("docs/guides/programs.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page, re.MULTILINE)
    listed = {name: keys for names, keys in rows for name in re.findall("`(.*?)`", names)}
    assert all(name in listed for name in typer.main.get_command(main).commands)
    told = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert [*told] == listed[command[0]].partition(", and with")[0].split(", ")
    if command[0] == "show":
        assert [*told["records"][0]] == listed["run"].split(", ")
    if command[0] == "compare":
        [row] = [row for label, row in told["labels"].items() if label != told["baseline"]]
        assert all(name in page for name in row)
