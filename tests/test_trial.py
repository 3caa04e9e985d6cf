"""Trials: what is refused before anything runs, and what is told at once."""

import pytest

import workbench as wb
from workbench.trials import Trial


@pytest.mark.parametrize(
    "options, message",
    [
        ({"arms": []}, "arms"),
        ({"seeds": 1}, "seeds=1"),
        ({"seeds": (5, 3)}, "seeds="),
        ({"measure": "seconds"}, "measure='seconds'"),
        ({"measure": "steps"}, "measure='steps'"),
        ({"target": 1.5}, "target=1.5"),
        ({"rates": [-1.0]}, "rates"),
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


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else than a trial"):
        Trial("pods", out=tmp_path)


def test_the_baseline_under_another_name_is_told_at_once(tmp_path):
    lines = []
    same = wb.methods.grpo().but(name="mine")
    trial = wb.trial(same, out=tmp_path / "trial", report=lines.append)
    assert trial.table[["arm", "verdict"]].to_numpy().tolist() == [["mine", "same"]]
    assert lines == [line for line in lines if "mine is grpo under another name" in line] != []
    assert str(trial) == "mine is grpo under another name."
