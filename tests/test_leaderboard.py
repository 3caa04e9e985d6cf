"""The leaderboard: its runs, its table by hand, and the command with a method of one's own."""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from sweep_processes import PARAMETERS
from trial_script import lab
from written_records import curve

import workbench as wb
from papers import leaderboard, leaderboards
from papers import plots as papers
from papers import standings as analysis
from workbench.analysis.curves import read
from workbench.analysis.runs import load_all
from workbench.analysis.targets import to_target
from workbench.records import pack
from workbench.trials import grids
from workbench.trials.arms import Arm, as_method
from workbench.trials.cases import Case, lacks_rollouts, prepare
from workbench.utils.names import MORE_PAPERS, PAPERS

ROOT = Path(__file__).parent.parent


def columns(rounds, sampled, trained, right=0.25, wrong=0.5):
    """The columns of a rounds table that the leaderboard reads, besides the usual ones."""
    return {
        "seconds_generate": [0.5] * rounds,
        "seconds_update": [0.5] * rounds,
        "problems": [32] * rounds,
        "selected": [256] * rounds,
        "tokens_sampled": [sampled] * rounds,
        "tokens_selected": [sampled] * rounds,
        "tokens_trained": [trained] * rounds,
        "all_positive": [right] * rounds,
        "all_negative": [wrong] * rounds,
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Three seeds of 4 rounds: GRPO, one that is twice as fast, and one that hardly learns.

    GRPO gains .1 a round of 100 rollouts. "fast" gains .2 and samples 200. The seeds differ in
    where they start and a little in their slope, so that there is a spread.
    """
    folder = tmp_path_factory.mktemp("written")
    places = np.arange(5)
    for seed in range(3):
        start = 0.2 + 0.004 * seed
        slope = 0.1 + 0.002 * seed
        alike = {"rollouts": 100, "columns": columns(4, 100, 50)}
        curve(folder, "grpo", seed, start + slope * places, **alike)
        curve(
            folder,
            "fast",
            seed,
            np.minimum(start + 0.2 * places, 0.9),
            rollouts=200,
            columns=columns(4, 200, 25, right=0.1, wrong=0.2),
        )
        curve(folder, "slow", seed, start + 0.01 * places, **alike)
    # As a sweep leaves its records; what is not packed counts as unfinished.
    pack(folder)
    return folder


@pytest.fixture(scope="module")
def groups(written):
    return load_all(written)


# The table


def test_the_target_is_three_quarters_of_the_way_of_the_baseline(groups):
    """The highest start is .208, and the lowest of the three ends .6."""
    assert analysis.target_of(groups) == pytest.approx(0.208 + 0.75 * (0.6 - 0.208))


def test_ratios_to_the_target_by_hand(groups):
    table = analysis.table(groups, target=0.5)
    assert table.index.tolist() == ["grpo", "fast", "slow"]
    # Half the rounds of twice the rollouts each: as many rollouts, half of the seconds.
    fast = table.loc["fast"]
    assert fast["rollouts"] == pytest.approx(1.02, abs=0.01)
    assert fast["flops"] == pytest.approx(fast["rollouts"])
    assert fast["round"] == pytest.approx(fast["rollouts"] / 2)
    assert fast["seconds"] == pytest.approx(fast["round"])
    assert (fast["rollouts_low"] <= fast["rollouts"]) and (
        fast["rollouts"] <= fast["rollouts_high"]
    )
    assert table.loc["grpo", list(analysis.UNITS)].tolist() == [1.0] * 4


def test_a_run_that_does_not_reach_the_target_makes_its_interval_open(groups):
    slow = analysis.table(groups, target=0.5).loc["slow"]
    assert slow["reached"] == 0 and slow["rollouts_censored"] == 3
    assert slow["rollouts"] > 1 and slow["rollouts_high"] == np.inf
    # Three seeds that were all cut leave nothing to decide by.
    assert slow["verdict"] == "open" and np.isnan(slow["resolves"])


def test_a_pair_of_which_neither_run_arrived_counts_once(groups):
    table = analysis.table(groups, target=0.9)
    assert table.loc[["grpo", "slow"], "reached"].tolist() == [0, 0]
    assert table.loc["slow", ["rollouts_censored", "flops_censored"]].tolist() == [3, 3]


def test_the_verdict_follows_holm_and_names_its_resolution(groups):
    table = analysis.table(groups, target=0.5)
    found = table.loc[["fast", "slow"]]
    decided = found["verdict"].isin(["better", "worse"])
    assert (decided == (found["p_holm"] <= 0.05)).all()
    assert found["verdict"].tolist() == ["alike", "open"]
    assert 0 < table.loc["fast", "resolves"] < 50


def test_accuracies_are_at_one_number_of_rollouts(groups):
    """400 rollouts are all that GRPO has; "fast" has them after 2 rounds."""
    table = analysis.table(groups, target=0.5)
    assert table.loc["grpo", "accuracy"] == pytest.approx(0.204 + 0.102 * 4, abs=2e-3)
    assert table.loc["fast", "accuracy"] == pytest.approx(0.604, abs=2e-3)
    assert table.loc["fast", "all_right"] == pytest.approx(0.1)
    assert table.loc["fast", "all_wrong"] == pytest.approx(0.2)
    assert table.loc["fast", "rollouts_a_round"] == 200


def test_one_seed_has_no_verdict(groups):
    one = {label: records[:1] for label, records in groups.items()}
    table = analysis.table(one, target=0.5)
    assert table.loc["fast", "verdict"] == "open"
    assert np.isnan(table.loc["fast", "p_holm"])


def test_the_winner_depends_on_the_price_of_sampling(groups):
    """To the target both sample as many tokens a rollout, and "fast" trains a quarter of GRPO's."""
    winners = analysis.winners(groups, 0.5, prices=(0.01, 100.0))
    assert winners["winner"].tolist() == ["fast", "grpo"]
    assert winners["ratio"].iloc[0] == pytest.approx(0.26, abs=0.02)
    assert winners["ratio"].iloc[1] == 1
    # "slow" never arrives, so it can win at no price.
    assert "slow" not in set(winners["winner"])
    assert winners["tied"].tolist() == ["", "fast"]


def test_nobody_wins_where_nobody_arrives(groups):
    groups = {"grpo": groups["slow"]}
    assert analysis.winners(groups, 0.5).empty


def test_the_figure_has_the_ratios_of_the_table(groups):
    drawn = to_target(groups, 0.5, "rollouts", baseline="grpo")
    table = analysis.table(groups, target=0.5)
    for label in ("fast", "slow"):
        columns = ["rollouts", "rollouts_low", "rollouts_high", "seeds"]
        expected = table.loc[label, columns].astype(float).tolist()
        shown = drawn.loc[label, ["ratio", "low", "high", "pairs"]].tolist()
        assert shown == pytest.approx(expected)
    [ax] = papers.leaderboard(drawn, baseline="grpo")
    assert [text.get_text() for text in ax.get_yticklabels()] == ["fast", "slow"]
    assert ax.figure.get_supxlabel().endswith("; 3 seeds")


def test_the_table_in_markdown(groups):
    """What cannot be said stays empty, and an interval without an end says so."""
    table = analysis.table(groups, target=0.5, units=analysis.FAIR_UNITS)
    text = leaderboards.markdown(table)
    head, _, grpo, fast, slow = text.split("\n")
    assert head == "| method | rollouts | FLOPs, all rows | verdict |"
    assert grpo == "| `grpo` | 1 | 1 | the baseline |"
    ratio = "1.02 [0.97, 1.07]"
    assert fast == f"| `fast` | {ratio} | {ratio} | alike |"
    assert slow.endswith(", open] | open |")


def test_what_a_method_changes_follows_from_its_record():
    records = load_all(ROOT / "data" / "runs" / "head-to-head")
    changed = leaderboards.changed_slots(records)
    assert changed["grpo"] == ""
    assert changed["knapsack"] == "allocator, advantage"
    assert changed["ar3po"] == "allocator, replay"
    with pytest.raises(ValueError, match="baseline='mine'"):
        leaderboards.changed_slots(records, baseline="mine")


def test_pairs_of_methods_and_which_of_them_turned(groups):
    """ "fast" costs about as much as GRPO, and "slow" more than either, which never arrives."""
    pairs = leaderboards.all_pairs(read(groups), 0.5)
    assert list(pairs.index) == [("fast", "grpo"), ("fast", "slow"), ("grpo", "slow")]
    assert pairs.loc[("fast", "grpo"), "ratio"] == pytest.approx(1.02, abs=0.01)
    assert pairs.loc[("grpo", "slow"), "low"] == 0
    before = pairs.assign(ratio=[0.5, 0.8, 2.0], lower=["fast", "", "slow"])
    now = pairs.assign(ratio=[1.25, 1.5, 0.5], p=0.01, p_holm=0.2)
    found = leaderboards.turned(before, now)
    assert found[["cheaper", "dearer"]].to_numpy().tolist() == [["slow", "grpo"], ["fast", "grpo"]]
    assert found["before"].tolist() == [0.5, 0.5]
    assert found["now"].tolist() == [2.0, 1.25]
    assert pairs["arrived"].tolist() == [True, False, False]
    tau = leaderboards.rank_correlation(pd.Series({"a": 1, "b": 2}), pd.Series({"b": 1, "a": 3}))
    assert tau == pytest.approx(-1)


@pytest.mark.slow
def test_effects_and_spread_are_told_apart(tmp_path):
    """A tenth more cost is seen where four seeds are alike, and not where they vary."""
    rng = np.random.default_rng(0)
    made = {}
    for name, spread in (("before", 0.01), ("after", 0.6)):
        for label, pace in (("one", 1.0), ("two", 0.9)):
            for seed in range(4):
                speed = pace * np.exp(spread * rng.standard_normal())
                scores = np.minimum(0.2 + 0.05 * speed * np.arange(0, 13), 0.95)
                curve(tmp_path / name, label, seed, scores)
        made[name] = read(load_all(tmp_path / name))
    found = leaderboards.apart(made["before"], made["after"], (0.5, 0.5))
    assert found.loc["before", "before"] == 1 and found.loc["before", "after"] == 0


def test_a_missing_baseline_is_named(groups):
    with pytest.raises(ValueError, match="baseline='grppo'"):
        analysis.table(groups, baseline="grppo")


def test_the_page_shows_the_table_of_the_notebook():
    table = pd.read_csv(ROOT / "data" / "leaderboard.csv", index_col="method")
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    assert leaderboards.markdown(table) in page, "print the table anew, as CONTRIBUTING.md says"


# The grid


def planned():
    """The runs that the grid asks for."""
    return grids.read(ROOT / "data" / "grids" / "leaderboard.yaml", ROOT / "runs")


def test_the_grid_names_methods_of_the_package():
    methods = {case.values.get("method") for case in planned()}
    assert len(methods) > 30
    assert methods <= {*PAPERS, *MORE_PAPERS}


def test_all_methods_are_evaluated_alike_and_have_eight_seeds():
    cases = planned()
    assert len({json.dumps(case.values["lab"]) for case in cases}) == 1
    assert {case.values["evaluate_every"] for case in cases} == {12}
    assert {case.values["rollouts"] for case in cases} == {60 * 32 * 8}
    by_label = pd.Series([case.values["label"] for case in cases]).value_counts()
    assert set(by_label) == {8}


@pytest.mark.parametrize(
    "lab, name",
    [
        ({}, "leaderboard"),
        ({"base": "early"}, "leaderboard"),
        ({"base": "late"}, "leaderboard-late"),
        ({"base": "late", "regime": "mixed"}, "leaderboard-late-mixed"),
    ],
)
def test_every_lab_has_a_folder_of_its_own(lab, name, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    board = leaderboard.leaderboard(lab=lab, only=["pods"])
    assert board.out.resolve() == tmp_path / "runs" / name
    assert {**leaderboard.LAB, **lab}.items() <= board.settings.lab.config.items()


def test_labels_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match="knapsak"):
        leaderboard.leaderboard(only=["knapsak"], out=tmp_path / "board")
    with pytest.raises(ValueError, match="pods"):
        leaderboard.leaderboard(own={"pods": "ar3po"}, out=tmp_path / "board")
    with pytest.raises(ValueError, match="seeds=0"):
        leaderboard.leaderboard(seeds=0, out=tmp_path / "board")
    assert not (tmp_path / "board").exists()


@pytest.mark.slow
def test_the_leaderboard_is_a_trial_of_the_arms_of_the_grid_each_tuned_alike(tmp_path):
    board = leaderboard.leaderboard(out=tmp_path / "board").settings
    assert [*board.arms] == list(dict.fromkeys(case.values["label"] for case in planned()))
    assert board.baseline == "grpo" and board.looks == (8,)
    assert (len(board.coarse), len(board.tuning_seeds)) == (5, 3)
    assert board.arms["pods"].method.selector == wb.selectors.MaxVariance(8)
    # The baseline takes part wherever something is compared with it.
    few = leaderboard.leaderboard(only=["pods"], own={}, out=tmp_path / "board")
    assert [*few.settings.arms] == ["grpo", "pods"]


# A run that goes on for its rollouts


@pytest.mark.parametrize(
    "rounds, sampled, lacks", [(5, 10, True), (5, 20, False), (5, 21, False), (50, 1, False)]
)
def test_a_run_goes_on_until_it_has_its_rollouts_or_ten_times_its_rounds(rounds, sampled, lacks):
    counts = [0] * (rounds - 1) + [sampled]
    values = {"rounds": 5, "rollouts": 20}
    assert lacks_rollouts(values, pd.DataFrame({"rollouts": counts})) is lacks


def test_a_run_without_a_number_of_rollouts_ends_with_its_rounds():
    values = {"rounds": 5, "rollouts": None}
    assert not lacks_rollouts(values, pd.DataFrame({"rollouts": [0] * 5}))


def test_a_wrong_number_of_rollouts_is_named(tmp_path):
    case = Case("a", {**PARAMETERS, "rollouts": -1}, tmp_path / "record", tmp_path / "logs")
    with pytest.raises(ValueError, match="rollouts=-1"):
        prepare(case)


# Methods of one's own


def test_a_method_of_ones_own_is_imported_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_methods.py").write_text(
        "import workbench as wb\n"
        "def mine():\n    return wb.methods.grpo(n=4).but(name='mine')\n"
        "def number():\n    return 1\n"
    )
    # In the working directory, also of a script that lies elsewhere.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert as_method("my_methods:mine").name == "mine"
    for name, message in [
        ("no_such_module:mine", "there is no module no_such_module"),
        ("my_methods:main", "my_methods has no main; did you mean 'mine'"),
        ("my_methods:number", "arm 1: "),
    ]:
        with pytest.raises(ValueError, match=message):
            as_method(name)


@pytest.mark.parametrize(
    ("text", "named"),
    [("mine", "NAME=VALUE"), ("=a:b", "NAME=VALUE"), ("mine=my_methods", "method='my_methods'")],
)
def test_what_is_no_method_of_ones_own_is_named(text, named):
    with pytest.raises(ValueError, match=named):
        leaderboard.main(["--add", text])


def test_a_grid_cannot_import_anything(tmp_path):
    """Neither by the key that a case has for it, nor through the name of a method."""
    with pytest.raises(ValueError, match="parameter='own'"):
        grids.read({"cases": [{"label": "a", "own": "os:getcwd"}]}, tmp_path)
    [case] = grids.read({"cases": [{"label": "a", "method": "os:getcwd"}]}, tmp_path)
    with pytest.raises(ValueError, match="method='os:getcwd'"):
        prepare(case)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seeds": 2}, "the methods need labels, under `cases`"),
        ({"seed": 2}, "key='seed'"),
    ],
)
def test_a_wrong_grid_of_ones_own_is_named(content, message, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=message):
        leaderboard.leaderboard(tmp_path / "grid.yaml")


def test_the_function_is_part_of_what_a_run_is(tmp_path):
    own = Arm("a", wb.methods.grpo(n=4)).pickle()
    named, pickled = (Case("a", {}, tmp_path, tmp_path, method=method) for method in (None, own))
    assert named.fingerprint() != pickled.fingerprint()


# The command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two methods, one of them of one's own, tuned at two rates; what the command printed."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "board_methods.py").write_text(
        "import workbench as wb\n"
        "def mine():\n"
        "    advantage = wb.advantages.LeaveOneOut()\n"
        "    return wb.methods.grpo().but(name='mine', advantage=advantage)\n"
    )
    parameters = {"rounds": 4, "problems_per_round": 4, "evaluate_every": 2}
    grid = {"parameters": parameters, "cases": [{"label": "grpo"}, {"label": "unused"}]}
    (folder / "grid.yaml").write_text(yaml.safe_dump({**grid, "seeds": 2}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        # In the grid's lab a run this short learns nothing.
        patch.setattr(leaderboard.config, "lab", lambda name, options: lab())
        command = ["grid.yaml", "--out", "out", "--jobs", "2", "--rate", "5e-3"]
        command += ["--tuning-seeds", "1", "--only", "mine", "--add", "mine=board_methods:mine"]
        first = printed([*command, "--target", "0.48"])
        again = printed([*command, "--target", "0.48"])
        with pytest.raises(ValueError, match=r"target: 0\.7, 0\.48"):
            leaderboard.main([*command, "--target", "0.7"])
    return folder / "out", first, again


def printed(arguments):
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        leaderboard.main(arguments)
    return stream.getvalue()


@pytest.mark.long
def test_the_command_tunes_every_method_and_makes_the_same_fresh_seeds(made):
    out, first, _ = made
    for label in ("grpo", "mine"):
        for seed in range(2):
            record = wb.load(out / "runs" / label / f"seed-{seed}")
            assert len(record.rounds) == 4, first
            # The last evaluation is of the end.
            assert record.evals["round"].max() == 4
            assert record.manifest["method"]["name"] == label
        assert len(list((out / "tuning" / label).glob("lr=*"))) == 3
    table = pd.read_csv(out / "leaderboard.csv", index_col="method")
    assert set(table.index) == {"grpo", "mine"}
    assert {"rollouts", "flops", "l40s", "round", "learning_rate"} <= set(table.columns)
    assert "seconds" not in table


@pytest.mark.long
def test_a_second_start_makes_nothing_and_tells_the_same(made):
    _, first, again = made
    assert "done in" not in again
    assert again.splitlines()[-1] == first.splitlines()[-1]


@pytest.mark.long
@pytest.mark.slow
def test_the_tables_are_printed(made):
    _, first, _ = made
    lines = first.splitlines()
    assert any(line.startswith("mine ") for line in lines)
    assert "the cheapest method by the price of sampling" in first
    assert lines[-1] == os.path.join("out", "leaderboard.csv")


@pytest.mark.slow
def test_nothing_to_compare_yet_is_said(tmp_path):
    with pytest.raises(ValueError, match="no run of 'grpo' is complete yet"):
        leaderboard.main(["--table", "--out", str(tmp_path)])


def test_seconds_are_left_out_where_units_are_asked_for_that_machines_share(groups):
    table, prices = analysis.tables(groups, target=0.4, units=analysis.FAIR_UNITS)
    units = list(analysis.FAIR_UNITS)
    assert table.loc["grpo", units].tolist() == [1.0] * len(units)
    assert "seconds" not in table
    assert {"FLOPs", "these records, in seconds"} < set(prices["price_of"])
