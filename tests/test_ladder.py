"""The candidates of the ladder: their problems, and the table of what was measured."""

import pandas as pd
import pytest

import workbench as wb
from papers import ladder
from workbench import problems


@pytest.mark.parametrize("name", ladder.CANDIDATES)
def test_held_out_problems_are_others_and_every_answer_is_a_number(name):
    candidate = ladder.CANDIDATES[name]
    if candidate.kind == "reasoning-gym":
        pytest.importorskip("reasoning_gym")
    train, held_out = (candidate.make(split, 40) for split in ("train", "heldout"))
    assert len(train) == 40 and len(held_out) >= 15
    assert not {each.prompt for each in train} & {each.prompt for each in held_out}
    assert not {each.id for each in train} & {each.id for each in held_out}
    for problem in [*train, *held_out]:
        assert float(problem.answer) == int(problem.answer)
    # The same again, as a run that goes on needs it.
    assert candidate.make("train", 40).digest == train.digest
    # Answers that a verifier cannot use are refused here.
    rows = [{"prompt": each.prompt, "answer": each.answer} for each in held_out]
    assert len(problems.from_rows(rows)) == len(held_out)


def test_the_table_says_how_far_each_candidate_has_come(tmp_path):
    starts = {"task": ["two operations", "gcd"], "problems": 64, "start": [0.25, 0.5], "tokens": 3}
    pd.DataFrame(starts).to_csv(tmp_path / "starts.csv", index=False)
    assert ladder.candidates_in_range(tmp_path) == ["two operations"]
    found = ladder.table(tmp_path)
    assert found["kind"].tolist() == ["numbers", "reasoning-gym"]
    assert found["rounds"].tolist() == [0, 0] and found["curve"].isna().all()


def test_the_table_has_the_curve_of_a_run(tmp_path, lab):
    starts = {"task": ["gcd"], "problems": 12, "start": [0.2], "tokens": 3}
    pd.DataFrame(starts).to_csv(tmp_path / "starts.csv", index=False)
    place = ladder.folder(tmp_path, "gcd")
    run = wb.Run(lab, wb.methods.grpo(4), out=place, problems_per_round=4, evaluate_every=1)
    for _ in run.rounds(2, progress=False):
        pass
    [row] = ladder.table(tmp_path).to_dict("records")
    accuracy = wb.load(place).accuracy()["accuracy"]
    assert (row["rounds"], row["at"]) == (2, 2)
    assert row["reached"] == accuracy.iloc[-1]
    assert row["curve"].split() == [f"{share:.3f}" for share in accuracy]
