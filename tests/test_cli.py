"""The command line and the import, as a newcomer meets them."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import workbench as wb
from workbench.__main__ import main


def invoke(*arguments):
    return CliRunner().invoke(main, arguments)


def test_quickstart_leaves_figure_table_and_record(tmp_path):
    result = invoke("quickstart", "--rounds", "2", "--out", str(tmp_path / "run"), "--figures", str(tmp_path / "figures"))
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"quickstart.svg", "quickstart.png"}
    assert "avg@8" in result.output and "greedy" in result.output and "notebooks/00_quickstart.ipynb" in result.output
    assert len(wb.load(tmp_path / "run").rounds) == 2


def test_run_any_method_with_settings(tmp_path):
    arguments = ["run", "pods", "--set", "n=4", "--set", "m=2", "--set", "rule=random", "--lab", "pool=16", "--lab", "held_out=0",
                 "--rounds", "1", "--problems", "4", "--out", str(tmp_path)]
    result = invoke(*arguments)
    assert result.exit_code == 0 and "Random(m=2)" in result.output, result.output
    assert wb.load(tmp_path).rounds["selected"].tolist() == [8]


@pytest.mark.parametrize("arguments, message", [
    (["run", "magic", "--out", "x"], "method 'magic': there are grpo, dapo"),
    (["run", "pods", "--set", "q=3", "--out", "x"], "q: no argument of pods; there are n, m, rule"),
    (["run", "pods", "--set", "n", "--out", "x"], "'n': NAME=VALUE is needed"),
    (["run", "grpo", "--set", "n=1", "--out", "x"], "n=1: a group needs at least 2"),
])
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1 and message in result.output
    assert result.output.strip().count("\n") == 0 and "Traceback" not in result.output


def test_usage_errors_are_clicks():
    result = invoke("quickstart", "--rounds", "0")
    assert result.exit_code == 2 and "0 is not in the range" in result.output


def test_import_takes_nothing_heavy():
    code = "import sys, workbench; print(sorted({'torch', 'transformers', 'vllm', 'unsloth', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there():
    assert all(getattr(wb, name) is not None for name in wb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wb.nothing
