"""What README says, it does: its code runs, its files exist, its numbers are those of the records."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

import workbench as wb
from workbench.analysis.metrics import mean_interval

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_code_runs_at_a_small_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "labs.unsloth" not in block
    ]
    model = wb.labs.shipped("models/tiny")
    names = {}
    for block in blocks:
        block = block.replace("rounds(20)", "rounds(2, progress=False)")
        block = block.replace("wb.labs.tiny(", "wb.labs.tiny(held_out=8, samples=1, ")
        block = block.replace('"path/or/hub-name"', f'"{model}"').replace(
            'template="chat"', 'template="{prompt}"'
        )
        exec(block, names)
    run = wb.Run(names["lab"], names["shortest"], problems_per_round=8, evaluate_every=0)
    assert next(run.rounds(1, progress=False))["selected"] == 64
    assert "MaxVariance(m=8)" in repr(names["mine"])


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`([\w/]+\.(?:py|ipynb|yml|txt))`", README)))
)
def test_files_exist(name):
    assert (ROOT / name).exists() or (ROOT / "workbench" / name).exists()


def test_the_table_of_methods_is_complete():
    table = README.split("## Methods")[1].split("## Measured")[0]
    assert set(
        re.findall(
            r"`(\w+)`",
            "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")),
        )
    ) - {"wb"} == set(wb.methods.PAPERS)


@pytest.mark.parametrize("name", ["accuracy", "greedy"])
def test_measured_numbers_are_those_of_the_records(name):
    records = [
        wb.load(path) for path in sorted((ROOT / "data" / "runs" / "tiny-grpo").glob("seed-*"))
    ]
    ends = np.array([record.accuracy()[name].iloc[[0, -1]] for record in records])
    row = next(
        line
        for line in README.splitlines()
        if line.startswith({"accuracy": "| avg@8", "greedy": "| greedy"}[name])
    )
    shown = [
        [float(x) for x in re.findall(r"[\d.]+", cell.replace("avg@8", ""))]
        for cell in row.split("|")[2:5]
    ]
    for column, numbers in zip(
        (ends[:, 0], ends[:, 1], ends[:, 1] - ends[:, 0]), shown, strict=True
    ):
        assert numbers == [round(float(x), 3) for x in mean_interval(column)][: len(numbers)]


def test_the_claims_are_those_of_the_head_to_head():
    notebook = nbformat.read(ROOT / "notebooks" / "06_head_to_head.ipynb", 4)
    shown = "\n".join(
        out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", [])
    )
    verdicts = re.findall(r"  (agrees|disagrees|cannot tell) +\d+$", shown, re.MULTILINE)
    section = README.split("## The papers")[1].split("\n## ")[0]
    rows = [
        row.strip("| ").replace("\\*", "*").split(" | ")
        for row in section.splitlines()
        if row.startswith("|")
    ][2:]
    assert {row[0] for row in rows} == {"PODS", "AR3PO", "Knapsack", "AERO", "CBS"}
    for *claim, notebook in rows:
        assert re.search(" +".join(map(re.escape, claim)), shown), claim
        assert (ROOT / "notebooks" / f"{notebook.strip('`')}.ipynb").exists()
    counts = re.findall(
        r"Of the (\d+) claims (\d+) agree, (\d+) disagrees?, and of (\d+)", section
    )[0]
    assert [int(count) for count in counts] == [
        len(verdicts),
        *(verdicts.count(name) for name in ("agrees", "disagrees", "cannot tell")),
    ]


@pytest.mark.parametrize("figure", re.findall(r"!\[.*?\]\((.*?)\)", README))
def test_the_figures_are_there(figure):
    assert (ROOT / figure).stat().st_size > 1000


def test_the_table_of_speed_is_that_of_the_benchmarks():
    measured = pd.read_csv(ROOT / "data" / "benchmarks.csv").set_index("measured")
    rows = [
        row.strip("| ").split(" | ")
        for row in README.split("## Speed")[1].split("\n\n")[1].splitlines()[2:]
    ]
    assert len(rows) > 10
    for name, median, spread, n, *_ in rows:
        found = measured.loc[name]
        assert (
            median.split()[0] == f"{found['median']:.3g}"
            and spread == f"{found.least:.3g} to {found.most:.3g}"
        )
        assert int(n) == found.n
