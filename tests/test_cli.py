"""The command line and the import, as a newcomer meets them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import pytest
from click.testing import CliRunner
from conftest import heed_interrupts
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

import workbench as wb
from workbench import methods
from workbench.__main__ import main
from workbench.cli import settings
from workbench.labs import shipped

SEEDS = str(shipped("runs/tiny-grpo"))
CBS = str(shipped("runs/cbs"))


def invoke(*arguments):
    return CliRunner().invoke(main, arguments)


def test_quickstart_leaves_figure_table_and_record(tmp_path):
    result = invoke(
        "quickstart",
        "--rounds",
        "2",
        "--out",
        str(tmp_path / "run"),
        "--figures",
        str(tmp_path / "figures"),
    )
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {
        "quickstart.svg",
        "quickstart.png",
    }
    assert (
        "avg@8" in result.output
        and "greedy" in result.output
        and "notebooks/00_quickstart.ipynb" in result.output
    )
    assert len(wb.load(tmp_path / "run").rounds) == 2


def test_run_any_method_with_settings(tmp_path):
    arguments = [
        "run",
        "pods",
        "--set",
        "n=4",
        "--set",
        "m=2",
        "--set",
        "rule=random",
        "--lab",
        "pool=16",
        "--lab",
        "held_out=0",
        "--rounds",
        "1",
        "--problems",
        "4",
        "--out",
        str(tmp_path),
    ]
    result = invoke(*arguments)
    assert result.exit_code == 0 and "Random(m=2)" in result.output, result.output
    assert wb.load(tmp_path).rounds["selected"].tolist() == [8]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "magic", "--out", "x"], "method 'magic': there are grpo, dapo"),
        (
            ["run", "pods", "--set", "q=3", "--out", "x"],
            "q: no argument of pods; there are n, m, rule",
        ),
        (["run", "pods", "--set", "n", "--out", "x"], "'n': NAME=VALUE is needed"),
        (["run", "grpo", "--set", "n=1", "--out", "x"], "n=1: a group needs at least 2"),
        (["run", "knapsak", "--out", "x"], "method 'knapsak': did you mean knapsack? there are"),
        (
            ["run", "cbs", "--set", "flor=0.1", "--out", "x"],
            "flor: no argument of cbs; did you mean floor?",
        ),
        (
            ["run", "grpo", "--set", "kll=0.1", "--out", "x"],
            "kll: no argument of grpo; did you mean kl?",
        ),
        (
            ["run", "grpo", "--set", "alocator.n=4", "--out", "x"],
            "no slot 'alocator'; did you mean allocator?",
        ),
        (
            ["run", "grpo", "--set", "allocator.m=4", "--out", "x"],
            "allocator.m: no argument of Uniform; there are n",
        ),
        (
            ["run", "grpo", "--set", "reuse.mode=direct", "--out", "x"],
            "reuse.mode: no argument of an empty slot; there are none",
        ),
        (
            ["run", "grpo", "--set", "objective.clip.low=1", "--out", "x"],
            "objective.clip.low: no argument of tuple; there are none",
        ),
        (
            ["run", "grpo", "--set", "advantage.esp=1", "--out", "x"],
            "esp: no argument of group_normalized; did you mean eps?",
        ),
        (["run", "cbs", "--set", "selector.scope=rond", "--out", "x"], "scope='rond': allowed are"),
        (
            ["run", "grpo", "--lab", "heldout=3", "--out", "x"],
            "heldout: no argument of tiny; did you mean held_out?",
        ),
        (["show", "nowhere"], "'nowhere': no record there"),
        (["show", SEEDS, "--out", "x.gif3"], "--out x.gif3: no picture format"),
        (["show", CBS, "--out", "x.svg"], "--out shows one method"),
        (["compare", SEEDS], "all are runs of tiny-grpo; at least two"),
        (["compare", CBS, "--baseline", "ppo"], "baseline='ppo': the labels are"),
        (["compare", CBS, "--x", "round", "--budget", "1000"], "was last evaluated at 100 round"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1 and message in result.output
    assert result.output.strip().count("\n") == 0 and "Traceback" not in result.output


def test_usage_errors_are_clicks():
    result = invoke("quickstart", "--rounds", "0")
    assert result.exit_code == 2 and "0 is not in the range" in result.output
    assert (
        invoke("compare", CBS, "--x", "parsecs").exit_code
        == invoke("comparr").exit_code
        == invoke("show").exit_code
        == 2
    )


def test_settings_reach_every_kind_of_slot():
    def made(name, *options):
        return settings.method(name, settings.pairs(options))

    assert settings.METHODS == methods.PAPERS
    assert made("cbs", "selector.scope=round", "allocator.n=16") == methods.cbs(n=16).but(
        selector=methods.cbs(scope="round").selector
    )
    assert made("grpo", "kl=0.1", "clip=0.1,0.2", "n=4") == methods.grpo(4, clip=(0.1, 0.2), kl=0.1)
    assert made("knapsack", "info_gain=FALSE", "allocator.low=3").allocator.info_gain is False
    assert (
        made("knapsack", "allocator.rates.kind=epoch").allocator
        == methods.knapsack(rates="epoch").allocator
    )
    assert made("dapo", "reward.overlong.buffer=0.5").reward == methods.dapo(overlong=0.5).reward
    assert made("aero", "advantage.alpha=2").advantage.keywords == {"alpha": 2, "beta": 1.0}
    assert made("ar3po", "mode=none").reuse is None
    assert settings.pairs(["a=[1, 2]", "b=x=y", "c="]) == {"a": [1, 2], "b": "x=y", "c": ""}


def test_compare_prints_a_table_or_json_and_draws(tmp_path):
    arguments = ["compare", f"{CBS}/grpo-full", f"{CBS}/grpo-group", "--x", "rollouts"]
    result = invoke(*arguments, "--out", str(tmp_path / "deep" / "fig.svg"))
    assert result.exit_code == 0, result.output
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert (
        found["budget"] == 12800
        and found["baseline"] == "grpo-full"
        and list(found["labels"]) == ["grpo-full", "grpo-group"]
    )
    group = found["labels"]["grpo-group"]
    groups = wb.analysis.comparisons.find([f"{CBS}/grpo-full", f"{CBS}/grpo-group"])
    expected = wb.analysis.comparisons.at_budget(groups, "rollouts", baseline="grpo-full")
    assert (
        group == expected.loc["grpo-group"].to_dict()
        and found["labels"]["grpo-full"]["difference"] is None
    )
    assert (
        f"{group['mean']:.3f} ± {group['half']:.3f}" in result.output
        and f"{group['difference']:+.3f}" in result.output
    )
    assert "grpo-group (n = 3)" in (tmp_path / "deep" / "fig.svg").read_text()
    other = invoke(*arguments, "--baseline", "grpo-group", "--y", "greedy", "--budget", "6400")
    assert (
        other.exit_code == 0
        and "minus grpo-group" in other.output
        and "at 6,400 rollouts" in other.output
    )


def test_seeds_that_differ_have_no_difference(tmp_path):
    for label, seed in (("a", 0), ("b", 1)):
        shutil.copytree(f"{CBS}/grpo-full/seed-{seed}", tmp_path / label / f"seed-{seed}")
    result = invoke("compare", str(tmp_path), "--out", str(tmp_path / "fig.png"))
    assert result.exit_code == 0 and "no seed in common" in result.output
    assert json.loads(invoke("compare", str(tmp_path), "--json").stdout)["labels"]["b"]["mean"] > 0


def test_show_prints_a_table_or_json_and_writes_figure_and_report(tmp_path):
    written = ["--html", str(tmp_path / "deep" / "report.html"), "--out", str(tmp_path / "fig.png")]
    result = invoke("show", f"{SEEDS}/seed-0", *written)
    assert (
        result.exit_code == 0
        and "level 1, avg@8" in result.output
        and "rollouts 51200" in result.output
    )
    assert (tmp_path / "deep" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "fig.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(invoke("show", SEEDS, "--json").stdout)["records"]
    assert [record["seed"] for record in found] == [0, 1, 2, 3, 4] and found[0]["rounds"] == 200
    curve = wb.load(f"{SEEDS}/seed-0").accuracy()
    assert found[0]["held_out"]["last"]["accuracy"] == curve["accuracy"].iloc[-1]


def test_run_prints_json_alone(tmp_path):
    result = invoke(
        "run",
        "grpo",
        "--set",
        "allocator.n=4",
        "--lab",
        "pool=8",
        "--lab",
        "held_out=0",
        "--rounds",
        "1",
        "--problems",
        "4",
        "--out",
        str(tmp_path),
        "--json",
    )
    found = json.loads(result.stdout)
    assert found["rollouts"] == 16 and found["held_out"] is None and found["method"] == "grpo"


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_is_130_and_the_run_goes_on(tmp_path):
    command = [
        sys.executable,
        "-m",
        "workbench",
        "run",
        "grpo",
        "--lab",
        "pool=32",
        "--lab",
        "held_out=0",
        "--rounds",
        "100000",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    for _ in range(1200):
        if (tmp_path / "run" / "rounds.parquet").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert (
        "stopped; the same command goes on" in process.communicate(timeout=60)[1]
        and process.returncode == 130
    )
    assert len(wb.load(tmp_path / "run").rounds) >= 1


@pytest.mark.parametrize("command", [[], *([name] for name in main.commands)])
def test_help_has_examples_that_parse(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0 and ("Examples:" in result.output or not command)
    examples = [
        line.split()[3:]
        for line in result.output.splitlines()
        if line.startswith("  ") and "-m workbench " in line
    ]
    for name, *arguments in examples:
        main.commands[name].make_context(name, arguments)  # a wrong option raises
    assert examples or not command


def test_completion():
    shown = invoke("--completion", "bash")
    assert shown.exit_code == 0 and "_WORKBENCH_COMPLETE=bash_complete" in shown.output
    code = "from workbench.__main__ import main; main(prog_name='workbench')"
    asked = {
        **os.environ,
        "_WORKBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": "workbench run a",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["plain,ar3po", "plain,aero"]


def test_help_and_completion_take_nothing_heavy():
    code = (
        "import sys; from workbench.__main__ import main\n"
        "main(['run', '--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pandas', 'matplotlib', 'jinja2', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_import_takes_nothing_heavy():
    code = "import sys, workbench; print(sorted({'torch', 'transformers', 'vllm', 'unsloth', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there():
    assert all(getattr(wb, name) is not None for name in wb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wb.nothing


WORDS = st.sampled_from(
    [
        "",
        "abc",
        "-1",
        "0",
        "1.5",
        "nan",
        "inf",
        "1e400",
        "none",
        "true",
        "[]",
        "{}",
        "'x'",
        "2",
        "(1, 2)",
        "a.b",
    ]
)
NAMES = st.sampled_from(
    [
        "n",
        "m",
        "k",
        "low",
        "rule",
        "mode",
        "scope",
        "prior",
        "clip",
        "keep",
        "allocator.n",
        "selector.m",
        "advantage.eps",
        "objective.clip",
        "allocator.rates.kind",
        "reward",
        "selector.",
        ".",
        "name",
    ]
)
LABS = st.sampled_from(
    ["levels", "held_out", "samples", "learning_rate", "seed", "threads", "nothing"]
)


@settings_of_hypothesis(max_examples=60)
@given(
    st.sampled_from(settings.METHODS),
    st.lists(st.tuples(NAMES, WORDS), max_size=2),
    st.lists(st.tuples(LABS, WORDS), max_size=1),
    st.sampled_from(["--problems", "--seed", "--evaluate-every", "--rounds"]),
    st.sampled_from(["1", "2", "-1", "x", ""]),
)
def test_no_words_on_the_command_line_end_in_a_traceback(method, chosen, lab, option, value):
    with tempfile.TemporaryDirectory() as out:
        arguments = [
            "run",
            method,
            "--rounds",
            "1",
            "--problems",
            "2",
            "--lab",
            "pool=8",
            "--lab",
            "held_out=0",
            option,
            value,
        ]
        arguments += ["--out", out]
        for flag, given_pairs in (("--set", chosen), ("--lab", lab)):
            for name, word in given_pairs:
                arguments += [flag, f"{name}={word}"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = invoke(*arguments)
    assert result.exit_code in (0, 1, 2) and (
        result.exception is None or type(result.exception) is SystemExit
    ), arguments
    assert result.exit_code != 1 or [
        line for line in result.output.splitlines() if line.startswith("error: ")
    ], arguments
