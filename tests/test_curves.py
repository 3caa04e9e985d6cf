"""The curve of a run, and why all arms of a comparison are read on one grid of evaluations."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_records import curve, write

from workbench.analysis import comparisons, curves
from workbench.analysis.curves import Curve, GridWarning
from workbench.analysis.runs import load_all
from workbench.records import Writer


def concave(rounds):
    """A learning curve that rises fast and then slowly: .2 + .1 sqrt(round)."""
    return (0.2 + 0.1 * np.sqrt(rounds)).round(3)


def two_grids(path, fine=2, coarse=8, last=16):
    """Two arms that learn exactly alike; one is evaluated more often than the other."""
    for label, every in (("fine", fine), ("coarse", coarse)):
        curve(path, label, 0, concave(np.arange(0, last + 1, every)), every=every)
    return load_all(path)


class TestOneGrid:
    def test_interpolating_a_concave_curve_favours_the_finer_grid(self, tmp_path):
        """The bias itself: alone, the coarse arm reads 4 points too low at round 4."""
        groups = two_grids(tmp_path)
        alone = {}
        for label, records in groups.items():
            [curve] = curves.read({label: records})[label].values()
            alone[label] = curve.score_at("round", 4)
        assert alone["fine"] == pytest.approx(0.4), "it was evaluated there: .2 + .1 sqrt(4)"
        assert alone["coarse"] == pytest.approx((0.2 + concave(8)) / 2), "halfway from 0 to 8"
        assert alone["fine"] - alone["coarse"] > 0.055

    def test_on_one_grid_arms_that_learn_alike_read_alike(self, tmp_path):
        groups = two_grids(tmp_path)
        with pytest.warns(GridWarning, match="fine.*2, 4, 6, 10"):
            table = comparisons.at_budget(groups, "round", 4, baseline="fine")
        assert table.loc["coarse", "difference"] == 0

    def test_equal_grids_are_not_warned_about(self, tmp_path):
        groups = two_grids(tmp_path, fine=4, coarse=4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = curves.read(groups)
        assert found["fine"][0].rounds.tolist() == [0, 4, 8, 12, 16]

    def test_a_shorter_run_does_not_shorten_the_others(self, tmp_path):
        curve(tmp_path, "long", 0, concave(np.arange(0, 17, 4)), every=4)
        curve(tmp_path, "short", 0, concave(np.arange(0, 9, 4)), every=4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = curves.read(load_all(tmp_path))
        assert found["long"][0].rounds.tolist() == [0, 4, 8, 12, 16]
        assert curves.common_budget(found, "round") == 8

    def test_the_evaluation_at_a_runs_own_end_may_lie_off_the_grid(self, tmp_path):
        """Runs of 10 and of 12 rounds, evaluated every 4 rounds and at their ends."""
        for label, ends in (("a", 10), ("b", 12)):
            rounds = [*range(0, ends, 4), ends]
            scores = [(number, 0.25 * i) for i, number in enumerate(rounds)]
            write(tmp_path, label, scores=scores, rollouts=[10] * ends)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = curves.read(load_all(tmp_path))
        assert found["a"][0].rounds.tolist() == [0, 4, 8]
        assert found["b"][0].rounds.tolist() == [0, 4, 8, 12]

    def test_grids_without_two_common_rounds_are_an_error(self, tmp_path):
        write(tmp_path, "a", scores=((0, 0.25), (3, 0.5)), rollouts=[10] * 4)
        write(tmp_path, "b", scores=((0, 0.25), (2, 0.5), (4, 0.75)), rollouts=[10] * 4)
        write(tmp_path, "c", scores=((1, 0.25), (4, 0.5)), rollouts=[10] * 4)
        with pytest.raises(ValueError, match="evaluations"):
            curves.read(load_all(tmp_path))

    def test_runs_that_stopped_before_their_first_evaluation_say_so(self, tmp_path):
        """Their grids are the same, and the rounds that they have in common are not the cause."""
        for label in ("a", "b"):
            write(tmp_path, label, scores=((0, 0.25),), rollouts=[10] * 3)
        with pytest.raises(ValueError, match="a/"):
            curves.read(load_all(tmp_path))

    @given(
        st.lists(st.floats(0.001, 1), min_size=9, max_size=9),
        st.sampled_from([2, 4, 8]),
        st.floats(0, 8),
    )
    def test_a_coarse_grid_never_reads_a_concave_curve_too_high(self, steps, every, place):
        """Gains that shrink from round to round make any concave curve."""
        gains = np.sort(steps)[::-1]
        scores = np.concatenate([[0.0], np.cumsum(gains)])
        fine = in_memory("fine", np.arange(9), scores[:9])
        coarse = in_memory("coarse", np.arange(0, 9, every), scores[:9:every])
        assert coarse.score_at("round", place) <= fine.score_at("round", place) + 1e-12
        on_one_grid = quietly({"fine": {0: fine}, "coarse": {0: coarse}})
        one, other = (by_seed[0].score_at("round", place) for by_seed in on_one_grid.values())
        assert one == other


def in_memory(label, rounds, scores):
    table = pd.DataFrame({"round": np.arange(1, 9), "rollouts": 10.0})
    return Curve(label, 0, rounds, scores, table, Path(label))


def quietly(by_label):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GridWarning)
        return curves._on_one_grid(by_label)


class TestScores:
    def test_what_was_spent_starts_at_nothing(self, tmp_path):
        [record] = load_all(write(tmp_path))["a"]
        assert curves.spent(record, "rollouts").tolist() == [0, 10, 40]
        assert curves.spent(record, "round").tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="unit='hours'"):
            curves.spent(record, "hours")
        with pytest.raises(ValueError, match="tokens_selected"):
            curves.spent(record, "tokens_selected")

    def test_scores_are_linear_between_two_evaluations(self, tmp_path):
        """.25 before training, .75 after 2 rounds of 10 and 30 rollouts."""
        [curve] = curves.read(load_all(write(tmp_path)))["a"].values()
        assert curve.places("rollouts").tolist() == [0, 40]
        assert curve.score_at("rollouts", 10) == 0.25 + 0.5 / 4
        assert curve.score_at("flops", 0) == 0.25
        assert curve.score_at("round", 2) == 0.75
        with pytest.raises(ValueError, match="budget=41"):
            curve.score_at("rollouts", 41)
        with pytest.raises(ValueError, match="budget=-1"):
            curve.score_at("rollouts", -1)

    def test_greedy_and_pass_at_k(self, tmp_path):
        """One of 4 samples is right of each problem: pass@2 is 1 - (3/4)(2/3) = 1/2."""
        [record] = load_all(write(tmp_path))["a"]
        assert curves.scores(record, "greedy").tolist() == [0, 1]
        assert curves.scores(record, "pass@2")[0] == pytest.approx(0.5)
        assert curves.scores(record, "pass@1").tolist() == curves.scores(record).tolist()

    @pytest.mark.parametrize(
        ("y", "says"),
        [
            ("pass@9", "k=9"),
            ("loss", "y='loss'"),
        ],
    )
    def test_unknown_scores_are_named(self, tmp_path, y, says):
        [record] = load_all(write(tmp_path))["a"]
        with pytest.raises(ValueError, match=says):
            curves.scores(record, y)


class TestComparable:
    def test_other_held_out_problems_are_refused(self, tmp_path):
        write(tmp_path, "a")
        write(tmp_path, "b", problems=("p", "r"))
        with pytest.raises(ValueError, match="other held-out problems"):
            curves.read(load_all(tmp_path))

    def test_a_run_that_was_never_evaluated_is_refused(self, tmp_path):
        write(tmp_path, "a", scores=())
        with pytest.raises(ValueError, match="never evaluated"):
            curves.read(load_all(tmp_path))

    def test_a_run_that_was_evaluated_once_can_be_read_alone(self, tmp_path):
        write(tmp_path, "a", scores=((0, 0.25),))
        [curve] = curves.read(load_all(tmp_path))["a"].values()
        assert curve.scores.tolist() == [0.25]

    def test_a_record_still_being_written_is_read_as_far_as_it_goes(self, tmp_path):
        Writer(tmp_path / "a" / "seed-0", {"format": 1, "seed": 0, "method": {"name": "a"}})
        with pytest.raises(ValueError, match="never evaluated"):
            curves.read(load_all(tmp_path))
