"""What becomes of single problems, against cases worked out by hand."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from hypothesis import given, settings
from hypothesis import strategies as st
from written_records import write

import workbench as wb
from papers import knapsack, measures, tuned
from workbench.analysis import correlations, difficulty
from workbench.analysis.difficulty import CLASSES, classify, transition_matrix
from workbench.analysis.runs import load_all

ROOT = Path(__file__).parent.parent


def frame(*rows):
    """Rows (problem, round, outcomes as a string of 0 and 1)."""
    parts = []
    for problem, number, text in rows:
        for outcome in text:
            parts.append((problem, number, outcome == "1"))
    return pd.DataFrame(parts, columns=["problem", "round", "correct"])


EVEN = frame(("a", 1, "1100"), ("b", 1, "0000"), ("a", 2, "1101"), ("b", 2, "0001"))
SAVING = frame(("a", 1, "1100"), ("b", 1, "0000"), ("a", 2, "11"), ("b", 2, "000000"))
FRAMES = {"even": {0: EVEN, 1: EVEN}, "saving": {1: SAVING}}

# Problem p: 2 of 4, then 1 of 2; problem q: 0 of 2.
TWO_VISITS = frame(("p", 1, "1100"), ("q", 1, "00"), ("p", 2, "01"))


class TestClasses:
    def test_the_bounds_belong_where_the_paper_puts_them(self):
        """Section 5.2: (0, .2] is hard, (.2, .8) medium, [.8, 1) easy."""
        rates = [0, 1e-9, 0.2, 0.2 + 1e-9, 0.8 - 1e-9, 0.8, 1 - 1e-9, 1]
        expected = ["extremely-hard", "hard", "hard", "medium", "medium", "easy", "easy"]
        assert classify(rates).tolist() == [*expected, "extremely-easy"]

    def test_transitions_by_hand(self):
        before = [0, 0, 0.5, 1]
        after = [0, 0.5, 0.5, 1]
        by_row = transition_matrix(before, after)
        assert by_row[0].tolist() == [0.5, 0, 0.5, 0, 0]
        assert by_row[1].tolist() == [0] * 5, "a class without problems stays zero"

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
    def test_the_rows_of_classes_that_there_are_add_up_to_1(self, pairs):
        before, after = np.array(pairs).T
        matrix = transition_matrix(before, after)
        assert matrix.sum() == pytest.approx(len(set(classify(before))))

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: classify([1.5]), "rates"),
            (lambda: classify([np.nan]), "rates"),
            (lambda: transition_matrix([0, 1], [0]), r"before \(2,\) and after \(1,\)"),
        ],
    )
    def test_bad_input_is_named(self, call, says):
        with pytest.raises(ValueError, match=says):
            call()


class TestVisits:
    def test_by_hand(self):
        table = difficulty.visits(TWO_VISITS)
        first = {"round": 1, "rollouts": 4, "correct": 2, "rate": 0.5}
        assert table.loc[("p", 0)].to_dict() == first
        assert table.loc[("p", 1), "rollouts"] == 2
        assert table.loc[("q", 0), "rate"] == 0

    def test_rates_of_a_visit(self):
        assert difficulty.visit_rates(TWO_VISITS, 0).to_dict() == {"p": 0.5, "q": 0.0}
        # q was drawn once, so that its last visit is its first.
        assert difficulty.visit_rates(TWO_VISITS, -1).to_dict() == {"p": 0.5, "q": 0.0}
        assert difficulty.visit_rates(TWO_VISITS, 1).to_dict() == {"p": 0.5}
        most = pd.Series({"p": 2, "q": 8})
        assert difficulty.visit_rates(TWO_VISITS, 0, most).to_dict() == {"p": 1.0, "q": 0.0}

    def test_equal_numbers_take_the_smaller_of_the_two(self):
        as_allocated = difficulty.last_rates(FRAMES)
        equal = difficulty.last_rates(FRAMES, equal=True)
        assert list(equal["even"]) == list(equal["saving"]) == [1], "seed 0 is missing in one"
        assert as_allocated["even"][1].to_dict() == {"a": 0.75, "b": 0.25}
        assert equal["even"][1].to_dict() == {"a": 1.0, "b": 0.25}
        assert as_allocated["saving"][1].to_dict() == {"a": 1.0, "b": 0.0}
        assert equal["saving"][1].to_dict() == {"a": 1.0, "b": 0.0}

    def test_unsolved_shares_read_as_many_rollouts_of_every_visit(self):
        """SAVING has two rollouts of a in round 2, so two are read everywhere."""
        even, saving = measures.unsolved_shares([EVEN, SAVING])
        assert even == saving == 0.5, "b in both rounds: its right rollout is the fourth"
        late = frame(("b", 2, "0001"))
        short = frame(("b", 2, "000"))
        assert measures.unsolved_shares([late, short]) == [1, 1]

    def test_sampling_until_the_first_success_does_not_look_like_solving_more(self):
        """Every rollout of both runs is right with the same chance; one run stops at a success."""
        rng = np.random.default_rng(0)
        texts = {"stopped": [], "further": []}
        for number in range(4000):
            draws = {name: rng.random(16) < 0.1 for name in texts}
            for name, row in draws.items():
                text = "".join("1" if right else "0" for right in row)
                if name == "stopped":
                    # Eight for all, then two at a time until one is right.
                    end = next((n for n in (8, 10, 12, 14) if "1" in text[:n]), 16)
                    text = text[:end]
                texts[name].append((f"p{number}", 1, text))
        shares = measures.unsolved_shares([frame(*rows) for rows in texts.values()])
        # Each is .9 ** 8 = .43 with a standard error of .008.
        assert shares == pytest.approx([0.9**8, 0.9**8], abs=0.03)

    def test_runs_without_a_common_visit_are_refused(self):
        with pytest.raises(ValueError, match="no visit in common"):
            measures.unsolved_shares([frame(("a", 1, "0")), frame(("b", 1, "0"))])


class TestWhereProblemsEnd:
    def test_final_classes_and_who_stays(self):
        table = knapsack.final(FRAMES)
        columns = [*CLASSES, "stay"]
        assert table.index.tolist() == [("even", 1), ("saving", 1)]
        assert table.loc[("even", 1), columns].tolist() == [0, 0, 1, 0, 0, 0]
        assert table.loc[("saving", 1), columns].tolist() == [0.5, 0, 0, 0, 0.5, 1]
        equal = knapsack.final(FRAMES, equal=True)
        assert equal.loc[("even", 1), "extremely-easy"] == 0.5

    def test_a_longer_run_is_cut_where_the_shorter_one_ends(self):
        """In round 3 of the longer run both problems are solved; the shorter one has two rounds."""
        # A third problem is drawn only then, and has neither a first nor a last visit before.
        third = frame(("a", 3, "1111"), ("b", 3, "1111"), ("c", 3, "1111"))
        longer = pd.concat([EVEN, third])
        frames = {"longer": {0: longer, 1: longer}, "shorter": {1: EVEN}}
        cut = difficulty.common_rounds(frames)
        assert cut["longer"][1]["round"].max() == 2
        assert cut["longer"][0]["round"].max() == 3, "no other arm has seed 0"
        table = knapsack.final(frames)
        assert table.loc[("longer", 1)].to_dict() == table.loc[("shorter", 1)].to_dict()
        matrices = difficulty.transitions(frames)
        assert matrices["longer"].equals(matrices["shorter"])
        solved = knapsack.solved_at_least_once(frames, unsolved_at="last")
        assert solved.loc[("longer", 1), "unsolved"] == 0

    def test_transitions_are_shares_of_a_row(self):
        table = difficulty.transitions(FRAMES)["saving"]
        assert table.loc["medium", "extremely-easy"] == 1
        assert table.loc["extremely-hard", "extremely-hard"] == 1
        assert table.to_numpy().sum() == 2

    def test_a_seed_without_a_class_leaves_the_shares_of_its_row_to_the_others(self):
        hard = frame(("a", 1, "0000"), ("a", 2, "0011"))
        medium = frame(("a", 1, "0011"), ("a", 2, "1111"))
        table = difficulty.transitions({"grpo": {0: hard, 1: medium, 2: medium}})["grpo"]
        assert table.loc["extremely-hard", "medium"] == table.loc["medium", "extremely-easy"] == 1
        assert table.to_numpy().sum() == 2

    def test_solved_at_least_once_counts_problems_that_were_drawn_again(self):
        rollouts = frame(
            ("solved", 1, "00"),
            ("solved", 2, "01"),
            ("solved", 3, "00"),  # once is enough
            ("never", 1, "00"),
            ("never", 2, "00"),
            ("drawn once", 1, "00"),
            ("right at once", 1, "10"),
            ("right at once", 2, "11"),
        )
        table = knapsack.solved_at_least_once({"grpo": {0: rollouts}})
        assert table.loc[("grpo", 0)].to_dict() == {"unsolved": 2, "solved": 1, "share": 0.5}
        none = knapsack.solved_at_least_once({"grpo": {0: frame(("a", 1, "1"), ("a", 2, "1"))}})
        assert np.isnan(none.loc[("grpo", 0), "share"])

    def test_unsolved_at_the_end_and_solved_before(self):
        """The paper counts problems that are extremely hard at the end of training."""
        rollouts = frame(
            ("solved once", 1, "00"),
            ("solved once", 2, "01"),
            ("solved once", 3, "00"),
            ("never", 1, "00"),
            ("never", 2, "00"),
            ("drawn once", 1, "00"),
            ("lost", 1, "11"),
            ("lost", 2, "00"),
            ("learnt", 1, "00"),
            ("learnt", 2, "11"),
        )
        table = knapsack.solved_at_least_once({"grpo": {0: rollouts}}, unsolved_at="last")
        assert table.loc[("grpo", 0)].to_dict() == {"unsolved": 3, "solved": 2, "share": 2 / 3}
        with pytest.raises(ValueError, match="unsolved_at='end'"):
            knapsack.solved_at_least_once({"grpo": {0: rollouts}}, unsolved_at="end")


class TestReplay:
    """Old responses that joined a round are no rollouts of that round."""

    def test_rows_with_an_age_are_counted_once(self, tmp_path):
        columns = {"problem": ["a", "a"], "round": [1, 1], "correct": [True, False]}
        again = {"problem": ["a", "a"], "round": [2, 1], "correct": [True, True]}
        rows = [columns | {"age": [0, 0]}, again | {"age": [0, 1]}]
        replay = {"replay": {"is": "replay.Replay"}}
        write(tmp_path, "ar3po", method=replay, rollouts=(2, 1), rows=rows)
        [record] = load_all(tmp_path)["ar3po"]
        table = difficulty.fresh_rollouts(record, ("problem", "round", "correct"))
        assert table["round"].tolist() == [1, 1, 2]

    def test_without_an_age_the_round_of_the_file_decides(self, tmp_path):
        rows = [
            {"problem": ["a"], "round": [1], "correct": [True]},
            {"problem": ["a", "a"], "round": [2, 1], "correct": [False, True]},
        ]
        # Records of early versions call the slot "reuse".
        reuse = {"reuse": {"is": "reuse.Reuse"}}
        write(tmp_path, "ar3po", method=reuse, rollouts=(1, 1), rows=rows)
        frames = difficulty.outcomes(load_all(tmp_path))
        assert frames["ar3po"][0]["round"].tolist() == [1, 2]

    def test_a_record_without_rollouts_is_named(self, tmp_path):
        write(tmp_path, "thin")
        wb.records.pack(tmp_path / "thin" / "seed-0", columns=())
        with pytest.raises(ValueError, match="its rollouts were not kept"):
            difficulty.outcomes(load_all(tmp_path))


class TestKnapsack:
    def test_spending_by_class(self):
        rollouts = frame(("p", 1, "1100"), ("p", 2, "01"), ("q", 1, "00"), ("q", 3, "1000"))
        table = knapsack.spending(rollouts)
        # Problem p was known at 2 of 4.
        medium = {"visits": 0.5, "rollouts": 2, "spent": 1 / 3, "mixed": 1}
        assert table.loc["medium"].to_dict() == medium
        # Problem q was known at 0 of 2.
        hard = {"visits": 0.5, "rollouts": 4, "spent": 2 / 3, "mixed": 1}
        assert table.loc["extremely-hard"].to_dict() == hard
        assert table.index.tolist() == list(CLASSES)
        assert table.loc["easy"].isna().all()

    def test_a_visit_is_mixed_only_with_right_and_wrong_rollouts(self):
        """Three problems known at one half: then all right, all wrong, and one of two."""
        rollouts = frame(
            *(("p", 1, "10"), ("p", 2, "11")),
            *(("q", 1, "10"), ("q", 2, "00")),
            *(("r", 1, "10"), ("r", 2, "01")),
        )
        assert knapsack.spending(rollouts).loc["medium", "mixed"] == pytest.approx(1 / 3)

    def test_spending_by_visit_and_class(self):
        """Known before the second visit: p at 1/2, q and r at 0; before the third, q at 1/4."""
        rollouts = frame(
            *(("p", 1, "10"), ("p", 2, "111111")),
            *(("q", 1, "00"), ("q", 2, "01"), ("q", 3, "0000000")),
            *(("r", 1, "00"), ("r", 2, "0000")),
        )
        table = knapsack.spending_by_visit(rollouts)
        assert table.index.tolist() == [1, 2]
        assert table.columns.tolist() == list(CLASSES)
        assert table.loc[1, ["extremely-hard", "medium"]].tolist() == [3, 6]
        assert table.loc[2, "medium"] == 7
        assert table.loc[2].notna().sum() == 1

    def test_the_past_is_a_window_of_the_last_outcomes(self):
        rollouts = frame(("p", 1, "1100"), ("p", 2, "01"), ("p", 3, "1"))
        known = list(knapsack.past_and_present(rollouts, window=3))
        assert [(visit, past.tolist(), present.tolist()) for visit, past, present in known] == [
            (1, [1, 0, 0], [0, 1]),
            (2, [0, 0, 1], [1]),
        ]

    def test_estimation_error_by_hand(self):
        assert knapsack.estimation_error(TWO_VISITS).to_dict() == {1: 0.0}
        # The last two of the first visit were wrong.
        assert knapsack.estimation_error(TWO_VISITS, window=2).to_dict() == {1: 0.5}

    @pytest.mark.slow
    def test_chance_alone_makes_an_error_too(self):
        """Three right of six, split as 4 + 2: in 6 of 15 ways the two are alike."""
        rng = np.random.default_rng(0)
        errors = [knapsack.estimation_error(TWO_VISITS, rng=rng)[1] for _ in range(400)]
        assert set(errors) == {0, 0.75}
        assert np.mean(errors) == pytest.approx(0.3, abs=0.06)
        still = TWO_VISITS.assign(correct=True)
        assert knapsack.estimation_error(still, rng=rng).to_dict() == {1: 0.0}

    @given(st.lists(st.integers(0, 40), min_size=4, max_size=12), st.integers(1, 4))
    def test_single_rollouts_are_dealt_out_most_evenly(self, counts, workers):
        """Their loads differ by one rollout at most, which no other way can undercut."""
        counts = np.array([*counts, 1])
        loads = knapsack.largest_loads(counts, workers, np.random.default_rng(0))
        assert list(loads) == ["blocks", "problems", "rollouts"]
        even = -(-counts.sum() // workers)
        assert loads["rollouts"] == pytest.approx(even * workers / counts.sum())
        assert min(loads.values()) == loads["rollouts"]


@pytest.mark.slow
class TestKnapsackOnRecords:
    @pytest.fixture(scope="class")
    def recorded(self):
        return tuned.recorded(ROOT / "data/runs", ["regimes/knapsack"])

    @pytest.fixture(scope="class")
    def pair(self, recorded):
        """Two seeds of each method are enough."""
        arms = ("regimes/knapsack/grpo-8", "regimes/knapsack/knapsack-8")
        return knapsack.Pair(*(recorded[arm][:2] for arm in arms))

    def test_pools_without_records_are_left_out(self, recorded):
        table = knapsack.across_pools(recorded)
        assert table.index.tolist() == ["half of the pool solved"]
        assert table["seeds"].tolist() == [8]
        assert table["equal rollouts"].item().startswith("+")

    def test_a_bill_is_relative_to_the_first_arm(self, pair):
        table = knapsack.bill(pair.groups, tuned.EVERYTHING_TRAINED, (17, 100))
        assert table["rollouts"].tolist() == [256, 256]
        relative = ["FLOPs, %", "every rollout trained, %"]
        assert table.loc["GRPO", relative].tolist() == [100, 100]
        assert (table.loc["Knapsack", relative] > 100).all()

    @pytest.mark.slow
    def test_every_claim_of_a_figure_is_measured(self, pair):
        findings = knapsack.measured(pair)
        assert len(findings) == len(knapsack.CLAIMS_OF_FIGURES)
        assert [found.measured.n for found in findings] == [2] * len(findings)

    @pytest.mark.slow
    def test_errors_stand_beside_those_of_chance(self, pair):
        lines = pair.errors_and_chance(visits=3, seed=0)
        assert list(lines) == ["GRPO", "Knapsack"]
        for kinds in lines.values():
            assert kinds["error"].index.tolist() == [1, 2, 3]
            assert (kinds["error"]["mean"] > kinds["chance"]["mean"]).all()

    @pytest.mark.slow
    def test_figures_name_the_methods(self, pair):
        bars = knapsack.class_bars(pair.ends, title="alike")
        assert len(bars.get_yticklabels()) == 4
        assert len(bars.get_legend().get_texts()) == len(CLASSES)
        assert bars.get_xlabel().endswith("(2 seeds)")
        panels = knapsack.fallback_panels({"it": pair.frames["Knapsack"]}, 2, title="more")
        assert len(panels) == 3
        shares = knapsack.gradient_panels(pair.groups, title="more")
        assert [ax.get_ylim() for ax in shares] == [(0, 1)] * 3
        plt.close("all")


def test_published_budgets_come_out():
    second, third = knapsack.published_budgets()
    for name in ("yes", "no"):
        assert (second.loc[name] == second.loc[f"{name}, ours"]).all()
    assert third.loc["ours, N_low = 2", "value"] > third.loc["Knapsack-GRPO", "value"]
    assert knapsack.published_scores()["difference"].between(1.7, 3.8).all()


class TestCbs:
    def test_correlations_over_seeds(self, tmp_path):
        for seed, sign in ((0, 1.0), (1, -1.0)):
            columns = {
                "round": np.ones(3, int),
                "age": np.zeros(3, int),
                "score": np.arange(3.0) * sign,
                "feature_reward": np.arange(3.0),
                "feature_age": np.zeros(3),
            }
            write(tmp_path, "cbs", seed, rollouts=(3,), rows=[columns])
        mean, deviation = correlations.correlations(load_all(tmp_path)["cbs"], 1)
        assert mean.loc["1-1", "reward"] == 0
        assert deviation.loc["1-1", "reward"] == pytest.approx(1)
        assert np.isnan(mean.loc["1-1", "age"])

    def test_seeds_of_unequal_length_are_read_as_far_as_the_shortest(self, tmp_path):
        """Else the windows of one run would be averaged with later rounds of another."""
        for seed, signs in ((0, [1.0, 1.0, -1.0, -1.0]), (1, [1.0, 1.0])):
            rows = [
                {
                    "round": np.full(3, number),
                    "age": np.zeros(3, int),
                    "score": np.arange(3.0) * sign,
                    "feature_reward": np.arange(3.0),
                }
                for number, sign in enumerate(signs, 1)
            ]
            write(tmp_path, "cbs", seed, rollouts=(3,) * len(signs), rows=rows)
        for windows in (2, [1, 2]):
            mean, deviation = correlations.correlations(load_all(tmp_path)["cbs"], windows)
            assert mean["reward"].to_dict() == {"1-1": 1, "2-2": 1}
            assert deviation.to_numpy().tolist() == [[0], [0]]


@pytest.mark.slow
def test_a_real_run(tmp_path):
    lab = small_lab(pool=8, levels=(1, 2), held_out=0)
    run = wb.Run(
        lab, wb.methods.knapsack(n=4), out=tmp_path / "knapsack" / "seed-0", problems_per_round=4
    )
    list(run.rounds(4, progress=False))
    frames = difficulty.outcomes(load_all(tmp_path))
    [ax] = wb.plots.transitions([run.record])
    drawn = np.reshape([float(text.get_text()) for text in ax.texts], (5, 5))
    matrix = difficulty.transitions(frames)["knapsack"].to_numpy()
    assert drawn == pytest.approx(100 * matrix, abs=0.5)
    assert set(matrix.sum(axis=1).round(9)) <= {0.0, 1.0}
    plt.close("all")
    table = knapsack.final(frames)
    assert table.loc[("knapsack", 0), list(CLASSES)].sum() == pytest.approx(1)
    spent = knapsack.spending(frames["knapsack"][0])
    assert spent["visits"].sum() == pytest.approx(1)
    assert (spent["rollouts"].dropna() >= 2).all()
    # Asked again with what was known before each round, the allocation is the recorded one.
    settings = {"again": {}, "even": {"low": 4, "up": 4}}
    visited = knapsack.reallocated(frames["knapsack"][0], settings)
    assert len(visited) == 8, "two rounds of four problems after the first epoch"
    assert (visited["again"] == visited["rollouts"]).all()
    assert (visited["even"] == 4).all()
    table = knapsack.reallocated_by_class(frames["knapsack"], settings)
    assert table.loc["moved, %", ["recorded", "again"]].tolist() == [0, 0]
    assert table.loc["largest", "even"] == 4
    moved = (visited["rollouts"] - 4).clip(lower=0).sum()
    assert table.loc["moved, %", "even"] == pytest.approx(100 * moved / 16 / 2)
    loads = knapsack.loads(frames["knapsack"][0], (1, 2), np.random.default_rng(0))
    assert loads[1].tolist() == [1, 1, 1]


# Dealing rollouts out to workers


def test_balance_by_karmarkar_karp():
    parts = knapsack.balance([8, 7, 6, 5, 4], 2)
    loads = [sum([8, 7, 6, 5, 4][i] for i in part) for part in parts]
    assert loads == [16, 14]  # the textbook case: differencing ends at 2, the optimum is 0
    assert sorted(np.concatenate(parts)) == list(range(5))
    assert [part.tolist() for part in knapsack.balance([1.0], 3)] == [[0], [], []]
    assert [part.tolist() for part in knapsack.balance([], 2)] == [[], []]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 9))
def test_balance_keeps_every_job_and_stays_close(costs, workers):
    parts = knapsack.balance(costs, workers)
    loads = [sum(costs[i] for i in part) for part in parts]
    assert len(parts) == workers
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(costs)))
    assert loads == sorted(loads, reverse=True)
    assert loads[0] - loads[-1] <= max(costs, default=0)


def test_jobs_dealt_shuffled_and_balanced():
    counts = np.array([3, 0, 20, 1])
    rng = np.random.default_rng(0)
    for parts in (
        knapsack.jobs(counts, 3),
        knapsack.jobs(counts, 3, rng=rng),
        knapsack.jobs(counts, 3, costs=np.array([1.0, 1, 2, 30])),
    ):
        assert len(parts) == 3
        assert np.bincount(np.concatenate(parts), minlength=4).tolist() == counts.tolist()
    assert [len(part) for part in knapsack.jobs(counts, 3, rng=rng)] == [8, 8, 8]
    whole = knapsack.jobs(counts, 3, costs=np.array([1.0, 1, 2, 30]))
    assert [sorted(set(part.tolist())) for part in whole] == [[2], [3], [0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knapsack.balance([1, np.nan], 2), "costs"),
        (lambda: knapsack.balance([1, -1], 2), "costs"),
        (lambda: knapsack.balance([1], 0), "workers=0"),
        (lambda: knapsack.jobs([1, 2], 2, costs=[1.0]), r"costs \(1,\) and counts \(2,\)"),
        (lambda: knapsack.jobs([1, -2], 2), "at least 0"),
    ],
)
def test_bad_loads_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
