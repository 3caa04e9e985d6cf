"""The harness itself, on cases checked by hand."""

import csv

import pytest

from tests.bench import ratios


def test_exponents_are_slopes_on_logarithmic_axes():
    assert ratios.exponents([1, 10, 100], [[2, 5], [20, 5], [200, 5]]) == pytest.approx([1, 0])


def test_bounds():
    assert [
        ratios.met(2.0, "<= 2"),
        ratios.met(2.1, "<= 2"),
        ratios.met(2.1, ">= 2"),
        ratios.met(1, None),
    ] == ["yes", "no", "yes", ""]


def test_turns_alternate():
    calls = []
    spent = ratios.turns(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)
    assert calls == ["a", "b"] * 4 and [len(column) for column in spent] == [3, 3]


def test_the_table_is_written_with_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(ratios, "TABLE", {})
    assert ratios.note("ours / theirs", [3, 1, 2], "<= 1") == 2
    with pytest.raises(AssertionError, match="measured twice"):
        ratios.note("ours / theirs", [1])
    ratios.write(tmp_path / "table.csv")
    head, row = csv.reader((tmp_path / "table.csv").open())
    assert tuple(head) == ratios.COLUMNS and row == [
        "ours / theirs",
        "2",
        "1",
        "3",
        "3",
        "<= 1",
        "no",
        "",
        ratios.machine(),
    ]
