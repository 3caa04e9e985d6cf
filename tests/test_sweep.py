"""Sweeps: real runs in processes and through papermill, and what is refused before any run."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import sweep_processes as under_test
import yaml
from conftest import started
from filelock import FileLock
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sweep_processes import PARAMETERS, wait_for, write_grid
from typer.testing import CliRunner

import workbench as wb
from workbench import config as named
from workbench.__main__ import main
from workbench.trials import grids, sweep
from workbench.trials.cases import Case, execute, prepare, read_results
from workbench.trials.engine import Processes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "data" / "grids").glob("*.yaml"))
linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")


def read(content, out="out"):
    return grids.read(content, Path(out).absolute())


def names(content):
    return [case.name for case in read(content)]


# Direct runs

# The entropy bonus has a gradient also where all answers are right.
DIVERGES = {"label": "diverges", "settings": {"objective.kl": 1e308}}  # 0 x inf
CASES = [
    {"label": "grpo", "arguments": {"n": 4}},
    {"label": "pods", "method": "pods", "arguments": {"n": 8, "m": 4}, "columns": "outcomes"},
    DIVERGES,
]


@pytest.fixture(scope="module")
def two_starts(tmp_path_factory):
    """A sweep of three runs, one of which fails, started twice: frames and lines of both."""
    folder = tmp_path_factory.mktemp("direct")
    grid = write_grid(folder, CASES)
    starts = []
    for _ in range(2):
        lines = []
        frame = sweep(grid, out=folder / "out", jobs=2, report=lines.append)
        starts.append((frame, lines))
    return folder / "out", starts


@pytest.mark.long
def test_runs_leave_records_and_a_failure_stops_no_other(two_starts):
    out, starts = two_starts
    frame, lines = starts[0]
    assert frame["run"].tolist() == ["grpo/seed-0", "pods/seed-0", "diverges/seed-0"]
    assert frame["status"].tolist() == ["done", "done", "failed"]
    assert lines[0] == "0 of 3 runs done before, 3 to make, 2 at a time"
    assert sorted(line[:6] for line in lines[1:]) == ["[1/3] ", "[2/3] ", "[3/3] "]
    failed = next(line for line in lines if "failed" in line)
    assert re.search(r"diverges/seed-0: failed: NonFinite: .*; see \S*logs/diverges/seed-0", failed)
    log = (out / "logs" / "diverges" / "seed-0" / "log.txt").read_text()
    assert "Traceback" in log and log.splitlines()[-1].startswith("diverges/seed-0: failed after")


def test_the_table_is_what_the_records_say(two_starts):
    out, starts = two_starts
    frame = starts[0][0].set_index("run")
    for name in ("grpo/seed-0", "pods/seed-0"):
        record = wb.load(out / name)
        row = frame.loc[name]
        assert row["rounds"] == len(record.rounds) == 4
        assert row["rollouts"] == record.rounds["rollouts"].sum()
        assert row["accuracy"] == pytest.approx(record.accuracy()["accuracy"].iloc[-1], abs=1e-4)
        assert row["greedy"] == pytest.approx(record.accuracy()["greedy"].iloc[-1], abs=1e-4)
        assert row["seconds"] > row["training_seconds"] > 0
    table = pd.read_csv(out / "results.csv")
    assert table["run"].tolist() == starts[1][0]["run"].tolist()
    assert set(wb.load(out / "pods/seed-0").rollouts().columns) >= {"problem", "correct"}
    assert len(wb.load(out / "grpo/seed-0").rollouts()) == 64


def test_a_run_of_a_sweep_is_the_same_as_any_other(two_starts, tmp_path):
    out, _ = two_starts
    run = wb.Run(
        named.lab("tiny", PARAMETERS["lab"]),
        wb.methods.grpo(4),
        out=tmp_path / "alone",
        problems_per_round=4,
        evaluate_every=4,
        checkpoint_every=2,
    )
    for _ in run.rounds(4, progress=False):
        pass
    ours, alone = (wb.load(path).rounds for path in (out / "grpo/seed-0", tmp_path / "alone"))
    same = [column for column in ours if not column.startswith("seconds")]
    pd.testing.assert_frame_equal(ours[same], alone[same])


def test_a_finished_run_is_skipped_and_a_failed_one_made_again(two_starts):
    _, starts = two_starts
    frame, lines = starts[1]
    assert frame["status"].tolist() == ["done", "done", "failed"]
    assert lines[0] == "2 of 3 runs done before, 1 to make, 2 at a time"
    assert len(lines) == 2 and lines[1].startswith("[3/3] diverges/seed-0: failed")
    same = ["run", "status", "seconds", "accuracy"]
    pd.testing.assert_frame_equal(frame[same].head(2), starts[0][0][same].head(2))


def flip_in_table(record, name="rounds-*.parquet"):
    """Turn a bit of a packed record round."""
    (path,) = record.glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_run_that_was_damaged_is_made_again_and_what_is_left_of_it_is_kept(two_starts, tmp_path):
    out, _ = two_starts
    shutil.copytree(out, tmp_path / "out")
    grid = write_grid(tmp_path, CASES[:2])
    before = wb.load(tmp_path / "out/grpo/seed-0").rounds
    flip_in_table(tmp_path / "out/grpo/seed-0")
    lines = []
    frame = sweep(grid, out=tmp_path / "out", jobs=1, report=lines.append)
    assert frame["status"].tolist() == ["done", "done"]
    assert "rounds-" in lines[0] and "grpo/seed-0 is made again" in lines[0]
    assert any(line.endswith("1 of 2 runs done before, 1 to make, 1 at a time") for line in lines)
    again = wb.load(tmp_path / "out/grpo/seed-0", strict=True).rounds
    same = [column for column in again if not column.startswith("seconds")]
    pd.testing.assert_frame_equal(again[same], before[same])
    (left,) = (tmp_path / "out/grpo").glob(".seed-0-damaged-*")
    assert (left / "shelf.json").exists()
    # A third start finds nothing to do, and nobody takes what is left for a run.
    lines.clear()
    sweep(grid, out=tmp_path / "out", jobs=1, report=lines.append)
    assert lines == []
    assert len(wb.records.record_paths(tmp_path / "out")) == len(wb.records.record_paths(out))


def test_a_complete_record_without_an_outcome_is_taken_as_it_is(two_starts, tmp_path):
    out, _ = two_starts
    case = Case("grpo/seed-0", {**PARAMETERS, **CASES[0]}, out / "grpo/seed-0", tmp_path / "logs")
    before = (out / "grpo/seed-0/shelf.json").stat().st_mtime_ns
    assert not case.finished
    grids._check_runs([case])
    execute(case)
    assert case.finished and case.outcome["results"]["rounds"] == 4
    assert (out / "grpo/seed-0/shelf.json").stat().st_mtime_ns == before


def test_a_complete_record_of_another_run_is_refused(two_starts, tmp_path):
    out, _ = two_starts
    values = {**PARAMETERS, **CASES[0], "arguments": {"n": 6}}
    case = Case("grpo/seed-0", values, out / "grpo/seed-0", tmp_path / "logs")
    with pytest.raises(ValueError, match=r"grpo/seed-0: out=.* holds another run"):
        grids._check_runs([case])
    longer = Case("grpo/seed-0", {**values, "rounds": 9}, case.record, tmp_path / "logs")
    with pytest.raises(ValueError, match="it can be read, but"):
        grids._check_runs([longer])


def test_other_runs_may_join_but_not_the_same_with_other_parameters(two_starts):
    out, _ = two_starts
    changed = [{**CASES[0], "arguments": {"n": 6}}]
    with pytest.raises(ValueError, match=r"grpo/seed-0 was made there with other parameters"):
        sweep({"parameters": PARAMETERS, "cases": changed}, out=out)
    lines = []
    fewer = {"parameters": PARAMETERS, "cases": [{**CASES[0], "cost": 3}]}
    assert len(sweep(fewer, out=out, report=lines.append)) == 1
    assert lines == []


def test_a_second_start_waits_for_the_first(two_starts):
    out, _ = two_starts
    lines = []
    grid = {"parameters": PARAMETERS, "cases": CASES[:2]}
    with FileLock(out / "sweep.lock"):
        second = threading.Thread(
            target=sweep, args=(grid,), kwargs={"out": out, "report": lines.append}
        )
        second.start()
        wait_for(lambda: lines)
        assert lines == [f"another sweep is at work in {out}; waiting for it to end"]
        assert second.is_alive()
    second.join(120)
    assert not second.is_alive() and len(lines) == 1


def test_wrong_arguments_of_a_run_are_said_before_anything_runs(tmp_path):
    wrong = [
        ({"method": "knapsak"}, "a/seed-0: method='knapsak': .*did you mean 'knapsack'"),
        ({"arguments": {"m": 1}}, "m: no argument of grpo"),
        ({"settings": {"selektor.m": 1}}, "selektor: .*did you mean 'selector'"),
        ({"lab": {"heldout": 3}}, "heldout: no argument of tiny"),
        ({"lab": {"name": "cloud"}}, "lab='cloud'"),
        ({"problems_per_round": 0}, "problems_per_round=0"),
        ({"rounds": "many"}, "rounds='many': a whole number"),
        ({"columns": "some"}, "columns='some': allowed are 'none'"),
        ({"cost": "long"}, "cost='long': a number above 0"),
        ({"method": "__import__('os').system('true')"}, "method="),
    ]
    for values, message in wrong:
        [case] = read({"cases": [{"label": "a", **PARAMETERS, **values}]}, tmp_path)
        with pytest.raises(ValueError, match=message):
            grids._check_runs([case])
    assert not list(tmp_path.iterdir())


# Deaths


@linux
@pytest.mark.long
def test_whatever_dies_is_named_takes_nothing_along_and_leaves_nothing_behind(tmp_path):
    """The deaths of a run, of the forkserver, and of two callers, while runs are at work."""
    with (
        started(under_test.make_waiting, tmp_path / "killed") as killed,
        started(under_test.make_waiting, tmp_path / "terminated") as terminated,
    ):
        caller = killed.process.pid
        one, other = wait_for(lambda: under_test.runs_of(caller, 2), 60)
        under_test.kill(one)
        assert killed.told.recv().endswith(
            "was killed by SIGKILL; the same command goes on with it"
        )
        # The next run begins, and the other one goes on.
        wait_for(lambda: {other} < set(under_test.runs_of(caller, 2)), 60)
        under_test.kill(under_test.parent(other))
        for _ in range(2):
            assert "the process that starts runs was killed" in killed.told.recv()
        # So a new forkserver is started.
        for death, status in ((killed, -signal.SIGKILL), (terminated, 128 + signal.SIGTERM)):
            caller = death.process.pid
            left = wait_for(lambda caller=caller: under_test.runs_of(caller, 2), 60)
            left = [*left, under_test.parent(left[0])]
            under_test.kill(caller, -status if status < 0 else signal.SIGTERM)
            death.process.join(60)
            assert death.process.exitcode == status
            wait_for(lambda left=left: not any(map(under_test.is_alive, left)), 240)
    # Of the run that was killed, of the two that died with the forkserver, and of no other.
    assert len(list((tmp_path / "killed").glob("logs/*/outcome.json"))) == 3


@pytest.mark.long
def test_a_script_without_a_guard_makes_its_runs_once(tmp_path):
    """Processes of multiprocessing import the main module again, which must not begin anew."""
    (tmp_path / "script.py").write_text(
        "print('begun', flush=True)\nimport sweep_processes\n"
        "sweep_processes.make_waiting('out', None)\n"
    )
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("begun") == 1
    assert [case.read_text().count("done") for case in tmp_path.glob("out/logs/*/out*")] == [1]


@linux
@pytest.mark.long
def test_a_sweep_that_dies_again_and_again_loses_no_run(tmp_path):
    """Deaths of several kinds at random moments; nothing is left over, and the end is the same."""
    cases = [{"label": label, "rounds": 30, "arguments": {"n": 2}} for label in ("a", "b")]
    grid = write_grid(tmp_path, cases, parameters={"evaluate_every": 15})
    whole = tmp_path / "whole"
    sweep(grid, out=whole, jobs=2, report=lambda line: None)

    out = tmp_path / "out"
    moments = random.Random(0)
    deaths = 0
    # "terminated" is handled as "hung up" is; tests/soak.py has all kinds, many times over.
    # The first death may come before any round, the others come in the middle of the runs.
    for death, further in (("worker", 0), ("killed", 4), ("hung up", 4)):
        delay = moments.uniform(0, 0.4)
        status, said = under_test.disturb(grid, out, death, delay, further=further)
        if death == "worker":
            assert status == 1
            assert "failed: its process was killed by SIGKILL; the same command goes on" in said
        elif status == 0:
            # The last run ended before the signal came, so there is nothing left to disturb.
            break
        else:
            assert status == under_test.DEATHS[death].status, said
        deaths += 1
    assert deaths >= 2, "the runs ended before they could be killed"
    under_test.check_finished(grid, out, whole)


def test_a_run_that_is_still_at_work_elsewhere_is_waited_for(two_starts, tmp_path):
    out, _ = two_starts
    case = Case("grpo/seed-0", {**PARAMETERS, **CASES[0]}, out / "grpo/seed-0", tmp_path / "logs")
    case.logs.mkdir()
    with FileLock(case.logs / "lock"):
        second = threading.Thread(target=execute, args=(case,))
        second.start()
        time.sleep(0.3)
        assert second.is_alive() and not case.finished
    second.join(120)
    assert case.finished


@pytest.mark.long
def test_a_local_ray_cluster(tmp_path, monkeypatch):
    # Of Ray's own processes, on a busy machine.
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "60000")
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray>=2.50'")
    cases = [{"label": "good"}, DIVERGES]
    grid = write_grid(tmp_path, cases)
    handlers = []

    def report(line):
        handlers.append(signal.getsignal(signal.SIGTERM).__qualname__)

    try:
        frame = sweep(grid, out=tmp_path / "out", jobs=2, ray="local", report=report)
    except ConnectionError as error:
        assert not ray.is_initialized()
        if "timed out during startup" in str(error):
            pytest.skip(str(error))
        raise
    assert frame["status"].tolist() == ["done", "failed"], frame["error"].tolist()
    # Ray's own handler would end the sweep with another exit status.
    assert len(handlers) >= 2 and set(handlers) == {"signals_raise.<locals>.leave"}
    assert len(wb.load(tmp_path / "out" / "good" / "seed-0").rounds) == 4
    log = (tmp_path / "out" / "logs" / "diverges" / "seed-0" / "log.txt").read_text()
    assert "NonFinite" in log
    assert not ray.is_initialized()


# Order


def test_the_longest_run_comes_first(tmp_path):
    cases = [{"label": "a", "rounds": 5}, {"label": "b", "rounds": 50}, {"label": "c", "cost": 99}]
    order = sorted(read({"cases": cases, "seeds": 1}), key=grids._shortness)
    assert [case.name[0] for case in order] == ["c", "b", "a"]


# Grids


def test_runs_are_the_cross_product():
    content = {
        "parameters": {"rounds": [1, 2], "learning_rate": 1e-4},
        "cases": [{"label": "a"}, {"label": "b", "method": "pods"}],
        "seeds": 2,
    }
    assert names(content) == [
        f"rounds={rounds},{label}/seed-{seed}"
        for rounds in (1, 2)
        for label in ("a", "b")
        for seed in (0, 1)
    ]
    last = read(content)[-1]
    assert last.values == {
        "learning_rate": 1e-4,
        "rounds": 2,
        "label": "b",
        "method": "pods",
        "seed": 1,
    }


def test_a_case_may_have_a_value_of_its_own_for_a_parameter_of_all():
    cases = read(
        {"parameters": {"rounds": 3}, "cases": [{"label": "a"}, {"label": "b", "rounds": 9}]}
    )
    assert [case.values["rounds"] for case in cases] == [3, 9]


def test_runs_without_a_label_are_called_after_what_varies():
    assert names({"parameters": {"method": ["grpo", "pods"]}, "seeds": [7]}) == [
        "method=grpo/seed-7",
        "method=pods/seed-7",
    ]
    assert names({"cases": [{"arguments": {"n": 8}}]}) == ["arguments=n=8/seed-0"]
    assert names({}) == ["run/seed-0"]
    assert names({"parameters": {"label": "mine"}}) == ["mine/seed-0"]


def test_names_are_short_and_their_own():
    content = {"parameters": {"method": ["a b", "a/b", "c" * 500, "d"]}}
    found = names(content)
    assert len(set(found)) == 4
    assert max(map(len, found)) < 150
    assert all(re.fullmatch(r"method=a_b~\w{8}/seed-0", name) for name in found[:2])
    assert found[3] == "method=d/seed-0"


def test_records_are_where_the_grid_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text("folder: records\ncases: [{label: a, rounds: 1e1}]\n")
    [case] = grids.read(tmp_path / "grid.yaml", tmp_path / "out")
    assert case.record == tmp_path / "records/a/seed-0"
    assert case.logs == tmp_path / "out/logs/a/seed-0"
    assert case.values["rounds"] == 10.0


@pytest.mark.parametrize("folder", ["../elsewhere", "/elsewhere", "inside/../../x", "link/x"])
def test_a_grid_s_folder_outside_is_refused_unless_the_caller_names_it(
    folder, tmp_path, monkeypatch
):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "link").symlink_to(tmp_path)
    grid = work / "grid.yaml"
    grid.write_text(yaml.safe_dump({"folder": folder, "cases": [{"label": "a"}]}))
    with pytest.raises(ValueError, match=r"folder='.*neither in the working dir.*--records '?/"):
        sweep(grid, out="out")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["grid.yaml", "link", "work"]

    [case] = grids.read(grid, work / "out", records=tmp_path / "mine")
    assert case.record == tmp_path / "mine/a/seed-0"
    told = CliRunner().invoke(main, ["sweep", str(grid)])
    assert told.exit_code == 1 and "error: folder=" in told.output


def test_a_grid_s_folder_may_lie_in_the_directory_of_the_sweep(tmp_path):
    (tmp_path / "grid.yaml").write_text("folder: out/records\ncases: [{label: a}]\n")
    [case] = grids.read(tmp_path / "grid.yaml", tmp_path / "out")
    assert case.record == tmp_path / "out/records/a/seed-0"


@pytest.mark.parametrize("seed", ["../../../up", "a", 1.5, -1, True, None, [0]])
def test_seeds_that_are_no_whole_numbers_are_refused(seed):
    """A seed is part of a directory's name, and a notebook may take any."""
    with pytest.raises(ValueError, match=r"seed=.*: a whole number of at least 0"):
        read({"seeds": [seed]})


@pytest.mark.parametrize("label", ["", " ", "a\n", 3, None, [1]])
def test_a_label_is_a_text_of_one_line(label):
    with pytest.raises(ValueError, match="label="):
        read({"cases": [{"label": label}]})


@pytest.mark.parametrize("label", ["../../up", "..", ".hidden", "/etc", "logs", "-1", "sweep.json"])
def test_a_label_leads_nowhere_else_and_takes_no_other_place(label):
    [case] = read({"cases": [{"label": label}]})
    out = Path("out").absolute()
    assert case.record.parent.parent == out and case.record.parent.name[0] == "%"
    assert case.logs.parent.parent == out / "logs"


@pytest.mark.slow
def test_any_label_of_one_line_is_an_arm_of_a_sweep(tmp_path):
    labels = ["GRPO + prior", "knapsack, shortest"]
    cases = [{"label": label, "rounds": 1} for label in labels]
    sweep(write_grid(tmp_path, cases), out=tmp_path / "out", report=lambda line: None)
    assert list(wb.load_all(tmp_path / "out")) == labels


# What a slot is set to in Python. A grid in a dict could hold it, but not write it to disk.
OBJECT = wb.selectors.MaxVariance(8)


@pytest.mark.parametrize(
    "content, message",
    [
        ({"parameters": {"numbr": 3}}, "parameter='numbr': allowed are 'label'"),
        ({"parameters": {"method": []}}, r"method=\[\]: a list of at least one value"),
        ({"parameters": {"rounds": [1, 1]}}, "two runs are called 'rounds=1/seed-0'"),
        ({"parameters": ["rounds"]}, r"parameters=\['rounds'\]: names with values"),
        ({"parameters": {"seed": [1]}, "seeds": 2}, "parameter 'seed': it is varied twice"),
        ({"parameters": {"rounds": [2]}, "cases": [{"rounds": 1}]}, "'rounds': it is varied twice"),
        ({"cases": {"rounds": 1}}, "cases=.*: a list of at least one value is needed"),
        ({"cases": [3]}, "cases=.*: a list of names with values"),
        ({"seeds": 0}, "seeds=0"),
        ({"paramters": {}}, "key='paramters': .*did you mean 'parameters'"),
        ({"parameters": {"settings": {"selector": OBJECT}}}, r"MaxVariance\(m=8"),
        ({"cases": [{"arguments": {"m": [OBJECT]}}]}, r"MaxVariance\(m=8"),
    ],
)
def test_what_is_wrong_with_a_grid_is_said(content, message):
    with pytest.raises(ValueError, match=message):
        read(content)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [", "not YAML"),
        ("- 1", "keys such as"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: !!int x", "not YAML"),
        ("a: !!int ''", "not YAML"),
        ("a: !!bool 7", "not YAML"),
        ("a: " + "[" * 1000, "not YAML"),
        ("parameters: &a {method: [*a]}", "nested more than 64"),
        ("parameters: {lab: {seed: 2001-01-01}}", r"datetime.date\(2001, 1, 1\) is no plain data"),
        ("1: 2", "the key 1 is no text"),
        ("seeds: 1000000000000", "seeds=1000000000000: a whole number from 1 to 10000"),
        ("cases: [{label: [1]}, {label: [1]}]", r"label=\[1\]"),
    ],
)
def test_what_is_no_grid_is_refused(text, message, tmp_path):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "grid.yaml")


def test_aliases_and_merge_keys_of_yaml_are_read(tmp_path):
    path = tmp_path / "grid.yaml"
    lines = [
        "parameters: {lab: &lab {name: tiny, pool: 8}}",
        "cases: [{label: a}, {label: b, lab: {<<: *lab, held_out: 4}}]",
    ]
    path.write_text("\n".join(lines))
    _, second = read(path)
    assert second.values["lab"] == {"name": "tiny", "pool": 8, "held_out": 4}


def test_a_file_that_is_too_large_is_refused_before_it_is_opened(tmp_path):
    path = tmp_path / "grid.yaml"
    path.touch()
    os.truncate(path, 2**40)  # zeros, which take no place on the disk
    with pytest.raises(ValueError, match="larger than"):
        read(path)


def test_a_file_that_is_missing_names_the_nearest(tmp_path):
    (tmp_path / "grid.yaml").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"grid=.*did you mean 'grid.yaml'"):
        read(tmp_path / "gird.yaml")


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_grid_names_what_there_is(path, tmp_path):
    for case in grids.read(path, tmp_path):
        values = {"settings": {}, "arguments": {}, "method": "grpo", **case.values}
        assert values["seed"] >= 0
        if case.values["seed"] == 0:
            named.method(values["method"], values["arguments"], values["settings"])


def test_the_example_is_checked_as_a_whole(tmp_path):
    cases = grids.read(ROOT / "data" / "grids" / "example.yaml", tmp_path)
    assert len(cases) == 6
    for case in cases[::2]:
        assert prepare(case).lab.samples == 4


@pytest.mark.parametrize("text", ["", '{"status": "do', "[]", "{}", "[" * 9999, "\x00\xff"])
def test_a_damaged_outcome_counts_as_not_finished(text, tmp_path):
    """As a file system may leave it after a loss of power."""
    [case] = read({"cases": [{"label": "a"}]}, tmp_path)
    case.end("done")
    case.record.mkdir(parents=True)
    (case.record / "manifest.json").touch()
    assert case.finished
    (case.logs / "outcome.json").write_text(text, encoding="latin-1")
    assert case.outcome == {} and not case.finished
    case.end("done")
    assert case.finished


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pipe", "link"])
def test_no_file_of_a_sweep_is_read_or_written_through_a_pipe_or_a_link(how, tmp_path):
    """Of a directory that somebody else has made; a pipe would make the sweep wait for ever."""
    grid = write_grid(tmp_path, CASES[:1], parameters={"rounds": 1})
    logs = tmp_path / "out/logs/grpo/seed-0"
    logs.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    files = [logs / "outcome.json", logs / "log.txt"]
    files += [tmp_path / "out" / name for name in ("sweep.json", "results.csv")]
    for path in files:
        os.mkfifo(path) if how == "pipe" else path.symlink_to(victim)
    assert sweep(grid, out=tmp_path / "out", jobs=1)["status"].tolist() == ["done"]
    assert victim.read_text() == "mine"
    assert all(path.is_file() and not path.is_symlink() for path in files)


def test_an_outcome_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    [case] = read({"cases": [{"label": "a"}]}, tmp_path)
    case.logs.mkdir(parents=True)
    done = []

    def synced(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    replace = os.replace
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("renamed"), replace(*names)))
    case.end("done")
    assert done == ["outcome.json.writing", "renamed", "seed-0"]
    assert case.outcome["status"] == "done"


def test_an_output_that_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "other.txt").touch()
    with pytest.raises(ValueError, match="it holds something else than a sweep"):
        sweep({}, out=tmp_path)


def test_bad_jobs_and_gpus_are_refused():
    with pytest.raises(ValueError, match="jobs=0: a whole number of at least 1"):
        sweep({}, jobs=0)
    with pytest.raises(ValueError, match=r"gpus=1: .* 0 without Ray"):
        sweep({}, gpus=1)
    with pytest.raises(ValueError, match="jobs=2: a running Ray cluster"):
        sweep({}, jobs=2, ray="auto")


# Through a notebook

SPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
NOTEBOOK_PARAMETERS = """number: int = 1  # any
rate: float = 0.5  # any
word: str = "f(x=1, y='#')"  # what to do
options: str = "{}"  # JSON
quick: bool = False  # any
seed: int = 0  # any
out: str = ""  # any"""
BODY = """import json, os, time
from pathlib import Path
Path(out).mkdir(parents=True, exist_ok=True)
starts = Path(out, "starts")
starts.write_text((starts.read_text() if starts.exists() else "") + word)
if word == "fail" and not Path("luck").exists():
    raise RuntimeError("no luck\\nat all")
if word == "die" and not Path("luck").exists():
    os._exit(7)
if word.startswith("meet"):  # ends only if the other one runs at the same time
    Path(word).touch()
    ended = time.monotonic() + 120
    while len(list(Path().glob("meet*"))) < 2:
        assert time.monotonic() < ended
        time.sleep(0.05)"""
RESULTS = """print("before")
found = {"number": number, "twice": 2 * number, "n": json.loads(options)}
print(json.dumps({**found, "n": found["n"].get("n"), "threads": os.environ["OMP_NUM_THREADS"]}))"""


def write_notebook(folder, results=RESULTS, body=BODY):
    cells = [
        new_markdown_cell("Work."),
        new_code_cell(NOTEBOOK_PARAMETERS, metadata={"tags": ["parameters"]}),
        new_code_cell(body),
        new_code_cell(results, metadata={"tags": ["results"]}),
    ]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": SPEC}), folder / "work.ipynb")
    return folder / "work.ipynb"


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """A grid of four cases of a notebook, started twice, the second time with luck."""
    folder = tmp_path_factory.mktemp("notebooks")
    write_notebook(folder)
    words = {"meet-a": 5, "meet-b": 6, "fail": 7, "die": 8}
    cases = [
        {"label": word, "word": word, "number": number, "options": {"n": number}}
        for word, number in words.items()
    ]
    for case in cases:
        del case["label"]  # the notebook has none
    grid = {"notebook": str(folder / "work.ipynb"), "parameters": {"rate": 2}, "cases": cases}
    starts = []
    for _ in range(2):
        lines = []
        starts.append((sweep(grid, out=folder / "out", jobs=2, report=lines.append), lines))
        (folder / "luck").touch()
    return folder, grid, starts


@pytest.mark.long
def test_notebooks_run_side_by_side_and_a_failure_stops_no_other(notebooks):
    frame, lines = notebooks[2][0]
    assert frame["word"].tolist() == ["meet-a", "meet-b", "fail", "die"]
    assert frame["status"].tolist() == ["done", "done", "failed", "failed"]
    assert frame["error"].tolist()[:3] == ["", "", "RuntimeError: no luck"]
    assert "DeadKernelError" in frame["error"][3]
    assert lines[0].startswith("runs the code of the notebook ")
    assert lines[0].endswith("work.ipynb")
    assert len(lines) == 6


@pytest.mark.long
@linux
def test_a_run_that_is_killed_leaves_no_kernel_behind(tmp_path):
    """The kernel of a notebook is a child of the run, and another package's."""
    body = "import os, time; from pathlib import Path\n"
    body += "Path('kernel').write_text(str(os.getpid())); time.sleep(600)"
    grid = {"notebook": str(write_notebook(tmp_path, body=body))}
    [case] = grids.read(grid, tmp_path / "out")
    workers = Processes()
    try:
        workers.start(case)
        kernel = wait_for(lambda: written(tmp_path / "kernel"), 120)
        assert Path(f"/proc/{kernel}").exists()
    finally:
        workers.stop()
    # Nobody has told Jupyter's process.
    wait_for(lambda: not Path(f"/proc/{kernel}").exists(), 60)


def written(path):
    """What a file holds; nothing while it does not exist."""
    return path.read_text() if path.exists() else ""


@pytest.mark.long
def test_the_second_start_runs_the_notebooks_that_failed(notebooks):
    folder, _, starts = notebooks
    frame, lines = starts[1]
    assert frame["status"].tolist() == ["done"] * 4
    assert lines[1].startswith("2 of 4 runs done before, 2 to make")
    made = [(folder / "out" / run / "starts").read_text() for run in frame["run"]]
    assert made == ["meet-a", "meet-b", "failfail", "diedie"]


def test_the_frame_has_parameters_and_results(notebooks):
    frame = notebooks[2][1][0]
    assert frame["number"].equals(frame["result_number"])
    assert frame["twice"].tolist() == [10, 12, 14, 16]
    assert frame["n"].tolist() == [5, 6, 7, 8]  # a mapping arrived as JSON
    assert frame["rate"].tolist() == [2.0] * 4
    assert set(frame["threads"]) == {"1"}


def test_executed_notebooks_name_no_path_of_the_machine(notebooks):
    folder, _, starts = notebooks
    logs = folder / "out" / "logs" / starts[1][0]["run"][0]
    text = (logs / "notebook.ipynb").read_text()
    assert "meet-a" in text and str(folder) not in text


def test_the_log_of_a_finished_notebook_ends_well(notebooks):
    folder, _, starts = notebooks
    for run in starts[1][0]["run"]:
        log = (folder / "out" / "logs" / run / "log.txt").read_text()
        assert "KeyboardInterrupt" not in log
        assert re.search(rf"{re.escape(run)}: done after \d", log.splitlines()[-1])


def test_a_notebook_whose_code_changed_is_refused(notebooks):
    folder, grid, _ = notebooks
    changed = folder / "changed"
    changed.mkdir()
    write_notebook(changed, body=BODY + "\n1 + 1")
    with pytest.raises(ValueError, match="code of its notebook was changed"):
        sweep({**grid, "notebook": str(changed / "work.ipynb")}, out=folder / "out")


def test_a_parameter_that_the_notebook_does_not_have_is_said(tmp_path):
    notebook = write_notebook(tmp_path)
    with pytest.raises(ValueError, match=r"parameter='numbr': .*did you mean 'number'"):
        read({"notebook": str(notebook), "parameters": {"numbr": 3}})


def test_an_unknown_notebook_names_the_nearest(tmp_path):
    write_notebook(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"notebook=.*; did you mean 'work.ipynb'"):
        read({"notebook": str(tmp_path / "wrok.ipynb")})


def test_the_path_of_a_notebook_starts_at_the_folder_of_the_grid(tmp_path, monkeypatch):
    """A notebook in the working directory is not there for a grid in a folder below."""
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path)
    (tmp_path / "grids").mkdir()
    grid = tmp_path / "grids" / "grid.yaml"
    grid.write_text("notebook: work.ipynb")
    place = re.escape(str(tmp_path / "grids" / "work.ipynb"))
    with pytest.raises(FileNotFoundError, match=f"notebook='{place}': there is no such file$"):
        read("grids/grid.yaml")
    grid.write_text("notebook: ../work.ipynb")
    assert read("grids/grid.yaml")


@pytest.mark.parametrize(
    "text, message",
    [
        ("plain words", "not a notebook"),
        ("{}", "not a notebook"),
        ('{"cells": 3, "nbformat": 4}', "not a notebook"),
        (nbformat.writes(new_notebook(cells=[new_code_cell("a = 1")])), "no cell is tagged"),
    ],
)
def test_what_is_no_notebook_with_parameters_is_refused(text, message, tmp_path):
    (tmp_path / "bad.ipynb").write_text(text)
    with pytest.raises(ValueError, match=message):
        read({"notebook": str(tmp_path / "bad.ipynb")})


@pytest.mark.parametrize("printed", ["x", "", "[1]", '{"a": [1]}', "3"])
def test_results_that_cannot_be_read_are_a_failure(printed):
    cell = new_code_cell("1", metadata={"tags": ["results"]})
    cell.outputs = [nbformat.v4.new_output("stream", text=printed)]
    with pytest.raises(ValueError, match="no JSON object"):
        read_results(new_notebook(cells=[cell]))
    assert read_results(new_notebook(cells=[new_code_cell("1")])) == {}


def test_columns_of_the_same_name_are_kept_apart(tmp_path):
    case = Case("a", {"run": 5, "rate": 0.5}, tmp_path, tmp_path / "logs", tmp_path / "work.ipynb")
    write_notebook(tmp_path)
    case.end("done", results={"seconds": 1.0, "score": 3}, seconds=2.0)
    [row] = grids._frame([case]).to_dict("records")
    assert row.pop("logs").endswith("logs")
    assert row == {
        "run": "a",
        "status": "done",
        "seconds": 2.0,
        "error": "",
        "parameter_run": 5,
        "rate": 0.5,
        "result_seconds": 1.0,
        "score": 3,
    }


# The command line


def test_the_command_line(tmp_path):
    grid = write_grid(tmp_path, [{**DIVERGES, "rounds": 2}])
    arguments = ["sweep", str(grid), "--out", str(tmp_path / "out"), "--jobs", "1"]
    failed = CliRunner().invoke(main, arguments)
    assert failed.exit_code == 1, failed.output
    assert "[1/1] diverges/seed-0: failed: NonFinite" in failed.output
    assert "error: 1 of 1 runs failed; the same command makes them again" in failed.output

    outcome = tmp_path / "out/logs/diverges/seed-0/outcome.json"
    (tmp_path / "out/diverges/seed-0").mkdir(parents=True, exist_ok=True)
    (tmp_path / "out/diverges/seed-0/manifest.json").touch()
    told = json.loads(outcome.read_text()) | {"status": "done", "seconds": 1.0, "error": ""}
    outcome.write_text(json.dumps(told))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0 and re.search(r"diverges/seed-0 +done", done.output), done.output
    printed = CliRunner().invoke(main, [*arguments, "--json"])
    assert json.loads(printed.stdout)[0]["status"] == "done"

    wrong = CliRunner().invoke(main, ["sweep", str(tmp_path / "gird.yaml")])
    assert wrong.exit_code == 1 and "did you mean 'grid.yaml'" in wrong.output
    assert "Traceback" not in wrong.output
