"""Sweeps: real papermill runs over a notebook made here, and what is refused before any run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from click.testing import CliRunner
from conftest import heed_interrupts
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.__main__ import main
from workbench.sweeps import grids
from workbench.sweeps.runner import Job, _results, _row, sweep

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "data" / "grids").glob("*.yaml"))
SPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
PARAMETERS = """number: int = 1  # any
rate: float = 0.5  # any
word: str = "f(x=1, y='#')"  # what to do
quick: bool = False  # any
plain = 3
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
if word == "sleep":
    Path("pid").write_text(str(os.getpid()))
    time.sleep(600)
if word.startswith("meet"):  # ends only if the other one runs at the same time
    Path(word).touch()
    ended = time.monotonic() + 120
    while len(list(Path().glob("meet*"))) < 2:
        assert time.monotonic() < ended
        time.sleep(0.05)"""
RESULTS = """print("before")
print(json.dumps({"number": number, "twice": 2 * number, "threads": os.environ["OMP_NUM_THREADS"], "typed": str(type(rate))}))"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A directory with the notebook, a grid of four cases and the frame and lines of two starts, the second with luck."""
    folder = tmp_path_factory.mktemp("sweep")
    write_notebook(folder)
    cases = [
        {"word": word, "number": number}
        for word, number in (("meet-a", 5), ("meet-b", 6), ("fail", 7), ("die", 8))
    ]
    content = {"notebook": "work.ipynb", "parameters": {"rate": 2}, "cases": cases}
    (folder / "grid.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    starts = []
    for _ in range(2):
        lines = []
        starts.append(
            (sweep(folder / "grid.yaml", out=folder / "out", jobs=2, report=lines.append), lines)
        )
        (folder / "luck").touch()
    return folder, starts


def write_notebook(folder, results=RESULTS, body=BODY):
    cells = [
        new_markdown_cell("Work."),
        new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        new_code_cell(body),
        new_code_cell(results, metadata={"tags": ["results"]}),
    ]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": SPEC}), folder / "work.ipynb")
    return folder / "work.ipynb"


def test_runs_are_side_by_side_and_a_failure_stops_no_other(bench):
    frame, lines = bench[1][0]
    assert frame["run"].tolist() == [
        "word=meet-a,number=5",
        "word=meet-b,number=6",
        "word=fail,number=7",
        "word=die,number=8",
    ]
    assert frame["status"].tolist() == ["done", "done", "failed", "failed"]
    assert (
        frame["error"].tolist()[:3] == ["", "", "RuntimeError: no luck"]
        and "DeadKernelError" in frame["error"][3]
    )
    assert len(lines) == 4 and all(
        re.match(r"\[[1-4]/4\] word=\S+: (done|failed) in \d+ s", line) for line in lines
    )


def test_the_second_start_runs_what_failed(bench):
    frame, lines = bench[1][1]
    assert frame["status"].tolist() == ["done"] * 4 and frame["error"].tolist() == [""] * 4
    assert sorted(line.endswith("done before") for line in lines) == [False, False, True, True]
    starts = [(bench[0] / "out" / run / "record" / "starts").read_text() for run in frame["run"]]
    assert starts == ["meet-a", "meet-b", "failfail", "diedie"]


def test_the_frame_has_parameters_results_and_seconds(bench):
    frame = bench[1][1][0]
    assert frame["number"].equals(frame["result_number"])
    assert (
        frame["twice"].tolist() == [10, 12, 14, 16]
        and frame["rate"].tolist() == [2.0] * 4
        and (frame["seconds"] > 0).all()
    )
    assert set(frame["threads"]) == {"1"} and set(frame["typed"]) == {"<class 'float'>"}
    assert (bench[0] / "out" / "results.csv").read_text().splitlines()[0] == ",".join(frame.columns)


def test_executed_notebooks_name_no_path_of_the_machine(bench):
    folder = bench[0]
    text = (folder / "out" / "word=meet-a,number=5" / "notebook.ipynb").read_text()
    assert 'out = \\"out/word=meet-a,number=5/record\\"' in text and str(folder) not in text


def test_more_runs_may_join_but_not_fewer_or_other_code(bench):
    folder = bench[0]
    content = yaml.safe_load((folder / "grid.yaml").read_text()) | {
        "notebook": str(folder / "work.ipynb")
    }
    with pytest.raises(
        ValueError,
        match=r"another sweep: 'word=meet-a,number=5' is not among these runs; name another dir",
    ):
        sweep({**content, "cases": content["cases"][1:]}, out=folder / "out")
    with pytest.raises(ValueError, match="is not among these runs"):
        sweep({**content, "parameters": {"rate": 3}}, out=folder / "out")
    lines = []
    more = {**content, "cases": [*content["cases"], {"word": "x", "number": 9}]}
    assert sweep(more, out=folder / "out", jobs=1, report=lines.append)["twice"].tolist() == [
        10,
        12,
        14,
        16,
        18,
    ]
    assert sum(line.endswith("done before") for line in lines) == 4
    other = folder / "other"
    other.mkdir()
    write_notebook(other, body=BODY + "\n1 + 1")
    with pytest.raises(
        ValueError,
        match=r"holds runs of work.ipynb before its code was changed; name another directory",
    ):
        sweep({**more, "notebook": str(other / "work.ipynb")}, out=folder / "out")


def test_an_output_that_is_no_sweep_is_refused(tmp_path):
    write_notebook(tmp_path)
    with pytest.raises(
        ValueError, match=r"holds something else than a sweep; name another directory"
    ):
        sweep({"notebook": str(tmp_path / "work.ipynb")}, out=tmp_path)


@pytest.mark.parametrize(
    "content, message",
    [
        (
            {"parameters": {"numbr": 3}},
            r"'numbr', value 3: unknown to the notebook; there are number, .*; did you mean 'number'\?",
        ),
        (
            {"parameters": {"number": "three"}},
            "parameter 'number', value 'three': the notebook says int, this is str",
        ),
        (
            {"parameters": {"number": [1, 2.5]}},
            "parameter 'number', value 2.5: the notebook says int, this is float",
        ),
        (
            {"parameters": {"number": True}},
            "parameter 'number', value True: the notebook says int, this is bool",
        ),
        (
            {"parameters": {"rate": "fast"}},
            "parameter 'rate', value 'fast': the notebook says float, this is str",
        ),
        ({"parameters": {"rate": float("nan")}}, "parameter 'rate', value nan: a number is needed"),
        (
            {"parameters": {"word": 3}},
            "parameter 'word', value 3: the notebook says str, this is int",
        ),
        (
            {"parameters": {"quick": 1}},
            "parameter 'quick', value 1: the notebook says bool, this is int",
        ),
        (
            {"parameters": {"plain": "x"}},
            "parameter 'plain', value 'x': the notebook says int, this is str",
        ),
        (
            {"parameters": {"word": None}},
            "parameter 'word', value None: a number, a truth value or text is needed",
        ),
        ({"parameters": {"number": []}}, "number: at least one value is needed"),
        (
            {"parameters": {"number": [1, 1]}},
            r"2 runs are \{'number': 1\}; every run has to differ",
        ),
        ({"parameters": ["number"]}, r"parameters=\['number'\]: a mapping"),
        ({"parameters": {"seed": 1}, "seeds": 2}, "parameter 'seed': given twice"),
        (
            {"parameters": {"rate": 2}, "cases": [{"number": 1}, {"rate": 1}]},
            "parameter 'rate': given twice",
        ),
        ({"cases": {"number": 1}}, "cases=.*: a list of mappings"),
        ({"seeds": 0}, "seeds: at least one value is needed"),
        ({"seeds": ["a"]}, "parameter 'seed', value 'a': the notebook says int"),
        (
            {"paramters": {}},
            "unknown key 'paramters'; there are notebook, .*; did you mean 'parameters'",
        ),
        ({"notebook": None}, "notebook=None: the path of a notebook is needed"),
    ],
)
def test_what_is_wrong_with_a_grid_is_said_before_anything_runs(content, message, tmp_path):
    notebook = write_notebook(tmp_path)
    with pytest.raises(ValueError, match=message):
        sweep({"notebook": str(notebook), **content}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_notebook_names_the_nearest(tmp_path):
    write_notebook(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=r"there is no such notebook; there are work.ipynb; did you mean 'work.ipynb'",
    ):
        grids.read({"notebook": str(tmp_path / "wrok.ipynb")})


@pytest.mark.parametrize(
    "text, message",
    [
        ("plain words", "not a notebook"),
        ("{}", "not a notebook"),
        ('{"cells": 3, "nbformat": 4}', "not a notebook"),
        (
            nbformat.writes(new_notebook(cells=[new_code_cell("a = 1")])),
            "no cell is tagged `parameters`",
        ),
    ],
)
def test_what_is_no_notebook_with_parameters_is_refused(text, message, tmp_path):
    (tmp_path / "bad.ipynb").write_text(text)
    with pytest.raises(ValueError, match=message):
        grids.read({"notebook": str(tmp_path / "bad.ipynb")})


@pytest.mark.parametrize(
    "text, message", [("a: [", "not YAML"), ("- 1", "a mapping with the key notebook is needed")]
)
def test_what_is_no_grid_is_refused(text, message, tmp_path):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        grids.read(tmp_path / "grid.yaml")


def test_runs_are_the_cross_product(tmp_path):
    write_notebook(tmp_path)
    content = {
        "parameters": {"rate": "1e-4", "quick": [True, False]},
        "cases": [{"word": "a", "number": 1}],
        "seeds": 2,
    }
    grid = grids.read({"notebook": str(tmp_path / "work.ipynb"), **content})
    assert list(grid.runs) == [
        f"quick={q},word=a,number=1,seed={s}" for q in (True, False) for s in (0, 1)
    ]
    assert grid.runs["quick=True,word=a,number=1,seed=1"] == {
        "rate": 1e-4,
        "quick": True,
        "word": "a",
        "number": 1,
        "seed": 1,
    }
    assert grid.sets_out and grid.notebook == tmp_path / "work.ipynb"


def test_cases_may_differ_in_what_they_name(tmp_path):
    write_notebook(tmp_path)
    grid = grids.read(
        {
            "notebook": str(tmp_path / "work.ipynb"),
            "cases": [{"word": "a"}, {"word": "a", "quick": True}],
        }
    )
    assert grid.runs == {"word=a": {"word": "a"}, "word=a,quick=True": {"word": "a", "quick": True}}


def test_labels_name_the_cases(tmp_path):
    path = write_notebook(tmp_path)
    path.write_text(path.read_text().replace("plain = 3", "label: str = ''"))
    cases = [{"label": "one", "word": "a, b"}, {"label": "two", "number": 3}]
    content = {"notebook": str(path), "cases": cases, "parameters": {"seed": [7]}}
    assert list(grids.read(content).runs) == ["seed=7,label=one", "seed=7,label=two"]


def test_names_are_short_and_their_own(tmp_path):
    write_notebook(tmp_path)
    grid = grids.read(
        {
            "notebook": str(tmp_path / "work.ipynb"),
            "parameters": {"word": ["a b", "a/b", "c" * 500, "d"]},
        }
    )
    assert (
        len(set(grid.runs)) == 4
        and max(map(len, grid.runs)) < 140
        and list(grid.runs)[3] == "word=d"
    )
    assert all(re.fullmatch(r"word=a_b~\w{8}", name) for name in list(grid.runs)[:2])


def test_bad_jobs_and_gpus_are_refused(tmp_path):
    grid = {"notebook": str(write_notebook(tmp_path))}
    with pytest.raises(ValueError, match="jobs=0: a whole number of at least 1"):
        sweep(grid, jobs=0)
    with pytest.raises(ValueError, match=r"gpus=1: .* 0 without Ray"):
        sweep(grid, gpus=1)
    with pytest.raises(ValueError, match="jobs=2: a running Ray cluster"):
        sweep(grid, jobs=2, ray="auto")


@pytest.mark.parametrize(
    "results, message",
    [
        ("print('x')", "no JSON object"),
        ("None", "no JSON object"),
        ("print('[1]')", "no JSON object"),
    ],
)
def test_results_that_cannot_be_read_are_a_failure(results, message):
    notebook = new_notebook(cells=[new_code_cell(results, metadata={"tags": ["results"]})])
    exec(
        results,
        {
            "print": lambda text: notebook.cells[0].outputs.append(
                nbformat.v4.new_output("stream", text=text)
            )
        },
    )
    with pytest.raises(ValueError, match=message):
        _results(notebook)
    assert _results(new_notebook(cells=[new_code_cell("1")])) == {}


def test_parameters_and_results_keep_their_columns_apart(tmp_path):
    (tmp_path / "run.json").write_text(
        json.dumps(
            {"status": "done", "seconds": 2.0, "error": "", "results": {"seconds": 1.0, "score": 3}}
        )
    )
    row = _row(Job("a", {"run": 5, "rate": 0.5}, tmp_path, tmp_path, False))
    assert row.pop("notebook").endswith("notebook.ipynb")
    assert row == {
        "run": "a",
        "parameter_run": 5,
        "rate": 0.5,
        "status": "done",
        "seconds": 2.0,
        "error": "",
        "result_seconds": 1.0,
        "score": 3,
    }


def test_a_local_ray_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "RAY_agent_register_timeout_ms", "60000"
    )  # of Ray's own processes, on a busy machine
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray>=2.50'")
    grid = {"notebook": str(write_notebook(tmp_path)), "parameters": {"word": ["meet-a", "meet-b"]}}
    try:
        frame = sweep(grid, out=tmp_path / "out", jobs=2, ray="local", report=lambda line: None)
    except ConnectionError as error:
        assert not ray.is_initialized()
        if "timed out during startup" in str(error):
            pytest.skip(str(error))
        raise
    assert frame["status"].tolist() == ["done", "done"], frame["error"].tolist()
    assert not ray.is_initialized()


def test_an_interrupt_takes_the_kernels_along(tmp_path):
    write_notebook(tmp_path)
    (tmp_path / "grid.yaml").write_text("notebook: work.ipynb\nparameters: {word: sleep}\n")
    command = [
        sys.executable,
        "-m",
        "workbench",
        "sweep",
        str(tmp_path / "grid.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=heed_interrupts
    )
    kernel = int(waited(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    process.send_signal(signal.SIGINT)
    assert (
        "stopped; the same command goes on" in process.communicate(timeout=60)[1]
        and process.returncode == 130
    )
    waited(lambda: not alive(kernel))
    outcome = tmp_path / "out" / "run" / "run.json"
    assert not outcome.exists() or json.loads(outcome.read_text())["status"] == "failed"


def waited(condition, seconds=120):
    """What the condition says, as soon as it says something."""
    ended = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < ended
        time.sleep(0.05)
    return said


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_the_command_line(tmp_path):
    write_notebook(tmp_path)
    (tmp_path / "grid.yaml").write_text(
        "notebook: work.ipynb\nparameters: {word: [fail], number: 4}\n"
    )
    arguments = [
        "sweep",
        str(tmp_path / "grid.yaml"),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    ]
    failed = CliRunner().invoke(main, arguments)
    assert failed.exit_code == 1 and "[1/1] word=fail: failed" in failed.output, failed.output
    assert "error: 1 of 1 runs failed; the same command runs them again" in failed.output
    errors = nbformat.read(tmp_path / "out" / "word=fail" / "notebook.ipynb", as_version=4)
    assert [
        o.ename
        for cell in errors.cells
        for o in cell.get("outputs", [])
        if o.output_type == "error"
    ] == ["RuntimeError"]
    (tmp_path / "luck").touch()
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0 and re.search(r"word=fail +fail +4 +done", done.output), done.output
    wrong = CliRunner().invoke(main, ["sweep", str(tmp_path / "gird.yaml")])
    assert (
        wrong.exit_code == 1
        and "there is no such file" in wrong.output
        and "Traceback" not in wrong.output
    )


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_grid_fits_its_notebook(path):
    assert grids.read(path).runs


def test_the_example_runs(tmp_path):
    content = yaml.safe_load((ROOT / "data" / "grids" / "example.yaml").read_text())
    content |= {"notebook": str(ROOT / "notebooks" / "00_quickstart.ipynb"), "seeds": 1}
    frame = sweep(content, out=tmp_path / "out")
    assert frame["status"].tolist() == ["done"] and frame["rounds"].tolist() == [2], frame[
        "error"
    ].tolist()
    assert (
        len(nbformat.read(tmp_path / "out" / "seed=0" / "notebook.ipynb", as_version=4).cells) > 10
    )
    assert (tmp_path / "out" / "seed=0" / "record" / "rounds.parquet").exists()
    assert '"image/png"' in (tmp_path / "out" / "seed=0" / "notebook.ipynb").read_text()
