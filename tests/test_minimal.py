"""The page of the whole loop, `examples/minimal.py`."""

import sys

import numpy as np
import pytest

import workbench as wb
from examples import minimal


@pytest.mark.slow
def test_both_ways_spend_the_same_number_of_rollouts_from_the_same_start():
    lab = wb.labs.tiny(pool=64, held_out=4)
    curves = [minimal.train(arm, 1, lab, seed=0) for arm in ("GRPO", "frugal")]
    for curve in curves:
        assert [rollouts for rollouts, _ in curve] == [0, 512]
    assert curves[0][0] == curves[1][0]


def test_the_frugal_way_moves_rollouts_to_problems_that_are_sometimes_solved():
    rates = np.array([0.0, 0.1, 0.5, 1.0])
    assert minimal.allocate("GRPO", rates).tolist() == [16] * 4
    counts = minimal.allocate("frugal", rates)
    assert counts.sum() == 64
    assert counts[1] > counts[2] > counts[3]


def test_the_frugal_way_keeps_rewards_that_differ():
    rewards = np.array([1.0] * 2 + [0.0] * 14)
    problems = np.array(["a"] * 16)
    kept = minimal.select("frugal", rewards, problems)
    assert len(kept) == 8
    assert rewards[kept].sum() == 2


@pytest.mark.slow
def test_the_command_draws_its_figure(tmp_path, monkeypatch, capsys):
    path = tmp_path / "further" / "minimal.svg"
    monkeypatch.setattr(minimal, "PROBLEMS_A_ROUND", 2)
    monkeypatch.setattr(sys, "argv", ["minimal", "--rounds", "1", "--out", str(path)])
    minimal.main()
    assert path.stat().st_size > 1000
    assert "frugal" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, said",
    [
        ("figure.txt", "has to be a file that ends with one of ."),
        ("figure", "has to be a file that ends with one of ."),
        ("folder.svg", "has to be a file that ends with one of ."),
        ("a-file/figure.svg", "its folder cannot be made"),
    ],
)
def test_a_figure_that_cannot_be_written_is_refused_before_training(
    tmp_path, monkeypatch, capsys, name, said
):
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "a-file").touch()
    monkeypatch.setattr(minimal, "train", None)
    monkeypatch.setattr(sys, "argv", ["minimal", "--out", str(tmp_path / name)])
    with pytest.raises(SystemExit) as ended:
        minimal.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arm", ["GRPO", "frugal"])
def test_problems_that_are_new_get_their_equal_share(arm):
    assert minimal.allocate(arm, np.array([np.nan, np.nan])).tolist() == [16, 16]
