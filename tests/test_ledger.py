"""The ledger: what an idea is charged, that nothing gets around it, and whole trials of one."""

import dataclasses
import json
import math
import re
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import searcher
import typer
from trial_script import EverySecond, edited, lab, make
from typer.testing import CliRunner

import workbench as wb
from papers import ideas
from workbench.__main__ import main
from workbench.analysis import sequential
from workbench.analysis.intervals import Measurement, resolved_ratio
from workbench.records import RecordError
from workbench.trials import Ledger, Trial
from workbench.trials.ledger import FIRST, level_of

app = typer.main.get_command(main)
SMALL = {"rounds": 4, "problems_per_round": 4, "rates": [5e-3], "tuning_seeds": 1, "seeds": 2}


def charge(ledger, name, label="mine", idea="a", reserved=20, first_seed=None):
    """Charge one idea, and return its row."""
    out = ledger.path.parent / name
    return ledger.charge(out, {label: idea}, "grpo", reserved, first_seed)[label]


def win(ledger, name, label="mine"):
    out = ledger.path.parent / name
    [first_seed] = {idea["first_seed"] for idea in ledger.ideas if idea["trial"] == f"../{name}"}
    ledger.settle(out, first_seed, {label: {"verdict": "better", "ratio": 0.8}})


@pytest.mark.parametrize("seed", range(20))
def test_the_levels_add_up_to_no_more_than_the_proof_says(seed):
    """Whatever wins when: at most the level for each win, and half of it before the first."""
    rng = np.random.default_rng(seed)
    wins, spent = [], 0.0
    for number in range(1, 2000):
        spent += level_of(number, wins, 0.05)
        if rng.random() < 0.02:
            wins.append(number)
        assert spent <= 0.05 * max(len(wins), 0.5) + 1e-12
    # Nothing is left lying either.
    assert sum(level_of(n, [], 0.05) for n in range(1, 2000)) > 0.95 * 0.025


def test_every_trial_is_charged_once_and_has_seeds_of_its_own(tmp_path):
    ledger = Ledger(tmp_path / "ideas")
    first, second = charge(ledger, "one"), charge(ledger, "two", idea="b")
    assert (first["number"], second["number"]) == (1, 2)
    assert (first["first_seed"], second["first_seed"]) == (FIRST, FIRST + 20)
    assert (first["level"], second["level"]) == (level_of(1, [], 0.05), level_of(2, [], 0.05))
    # The same call again is the same trial.
    assert charge(Ledger(tmp_path / "ideas"), "one") == first and len(ledger.table) == 2
    win(ledger, "two")
    assert charge(ledger, "three", idea="c")["level"] == level_of(3, [2], 0.05) > first["level"] / 4
    assert ledger.table["verdict"].fillna("").tolist() == ["", "better", ""]


def test_an_idea_under_another_name_or_in_another_place_is_charged_again(tmp_path):
    ledger = Ledger(tmp_path / "ideas")
    charge(ledger, "one", "shortest")
    row = charge(ledger, "two", "brevity")
    assert (row["number"], row["again"], row["first_seed"]) == (2, 1, FIRST + 20)
    assert charge(ledger, "three", "shortest")["again"] == 2
    assert charge(ledger, "four", "new", idea="b")["again"] is None


def test_another_idea_in_a_directory_that_was_emptied_is_charged_and_has_fresh_seeds(tmp_path):
    ledger = Ledger(tmp_path / "ideas")
    out = tmp_path / "one"

    def again(ideas, against="grpo", reserved=20):
        return ledger.charge(out, ideas, against, reserved, None)

    first = again({"mine": "a", "other": "b"})
    win(ledger, "one")
    first = ledger.of_trial(out, FIRST)
    # The same trial goes on, also with fewer of its arms, and with fewer seeds.
    assert again({"mine": "a", "other": "b"}) == again({"other": "b"}) == first
    assert again({"mine": "a"}, reserved=8) == first and len(ledger.table) == 2
    # An edited idea takes the other arm of its trial along, since they share the fresh seeds.
    edited = again({"mine": "A", "other": "b"})
    assert [row["number"] for row in edited.values()] == [3, 4]
    assert {row["first_seed"] for row in edited.values()} == {FIRST + 20}
    assert edited["mine"]["verdict"] is edited["mine"]["again"] is None
    assert edited["other"]["again"] == 2 and edited["mine"]["level"] == level_of(3, [1], 0.05)
    # So do another baseline or lab, and seeds beyond those that were set aside.
    for number, options in enumerate(({"against": "pods"}, {"reserved": 21}), 5):
        row = again({"mine": "a"}, **options)["mine"]
        assert (row["number"], row["first_seed"]) == (number, FIRST + 20 * (number - 3))
    # What was found is written beside the trial that found it, and each of them goes on.
    ledger.settle(out, FIRST + 20, {"mine": {"verdict": "open"}})
    assert ledger.table["verdict"].fillna("").tolist() == ["better", "", "open", "", "", ""]
    assert again({"mine": "A"}) == ledger.of_trial(out, FIRST + 20)
    assert again({"mine": "a"})["mine"]["number"] == 6 and len(ledger.table) == 6


def test_nobody_gets_seeds_that_were_looked_at(tmp_path):
    ledger = Ledger(tmp_path / "ideas")
    charge(ledger, "one", first_seed=50, reserved=20)
    for first_seed in (50, 31, 69):
        with pytest.raises(ValueError, match=f"first_seed={first_seed}.* 50 to 69"):
            charge(ledger, "two", first_seed=first_seed)
    assert charge(ledger, "two", first_seed=70)["first_seed"] == 70
    with pytest.raises(ValueError, match="late cannot join"):
        ledger.charge(tmp_path / "one", {"mine": "a", "late": "b"}, "grpo", 20, None)
    assert len(ledger.table) == 2


def test_a_ledger_has_one_level_and_a_damaged_one_is_named(tmp_path):
    charge(Ledger(tmp_path / "ideas", 0.1), "one")
    assert Ledger(tmp_path / "ideas").level == 0.1
    with pytest.raises(ValueError, match=r"level=0.05.*0\.1"):
        Ledger(tmp_path / "ideas", 0.05)
    for text in ("{", "[]", '{"level": 0.1}', '{"level": 0.1, "ideas": [{"number": 1}]}'):
        (tmp_path / "ideas" / "ledger.json").write_text(text)
        with pytest.raises(RecordError, match=r"ledger\.json"):
            Ledger(tmp_path / "ideas")


@pytest.mark.parametrize("place", ["trial", "trial/ideas", "file"])
def test_a_ledger_that_has_no_place_is_refused_before_anything_is_written(place, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "trial"
    with pytest.raises(ValueError, match=r"ledger=.*directory"):
        Trial(EverySecond, lab=lab(), out=out, ledger=tmp_path / place, **SMALL)
    assert not out.exists()


@pytest.mark.parametrize(
    "options, named",
    [({"level": 0.0}, "level"), ({"first_seed": -1}, "first_seed"), ({"forecast": 17}, "forecast")],
)
def test_wrong_arguments_of_a_trial_with_a_ledger_are_named(options, named, tmp_path):
    options = {"ledger": tmp_path / "ideas", "lab": lab(), **SMALL, **options}
    with pytest.raises(ValueError, match=named):
        Trial(EverySecond, out=tmp_path / "trial", **options)


def test_rare_levels_are_kept_by_the_union_of_all_looks():
    """Far below what the draws can tell, an arm is decided exactly at its nominal level."""
    level = 4e-6
    nominal = sequential.nominal_levels(level=level)
    assert nominal.sum() == pytest.approx(level)
    for n, each in zip(sequential.LOOKS, nominal):
        assert sequential.union_p(each, n) == pytest.approx(level)
    assert (nominal < sequential.nominal_levels(level=1.001 * sequential.RARE)).all()
    values = np.exp(np.random.default_rng(0).normal(-0.5, 0.1, 12))
    [found] = sequential.readings({"a": Measurement(values, "ratio")}, level=level).values()
    assert found.verdict == "better" and found.p < level
    [found] = sequential.readings({"a": Measurement(values[:5], "ratio")}, level=level).values()
    assert found.verdict == "open"


def test_the_table_of_two_hundred_ideas_is_what_a_simulation_says():
    recorded = pd.read_csv("data/ledger.csv").set_index(["tuning", "ratio", "way"])
    again = ideas.simulate(years=8, ratios=(0.8,)).set_index(["tuning", "ratio", "way"])
    for name, row in again.iterrows():
        # Eight years in place of two hundred: counts of false winners spread like Poisson ones.
        spread = 4 * np.sqrt(max(recorded.loc[name, "false_wins"], 0.1) / 8)
        assert row["false_wins"] == pytest.approx(recorded.loc[name, "false_wins"], abs=spread)
        assert row["true_wins"] == pytest.approx(recorded.loc[name, "true_wins"], abs=0.8)
    with_ledger = recorded.xs("trials with a ledger", level="way")
    without = recorded.xs("trials without a ledger", level="way")
    assert (without["false_share"] > 0.3).all()
    # What tuning misses is no part of the level: the docs say how much it adds.
    assert (with_ledger.loc[:0.018, "false_share"] < 0.05).all()
    assert (with_ledger["false_share"] < 0.2 * without["false_share"]).all()


def test_two_pairs_at_a_small_level_resolve_nothing_and_say_so_quietly():
    assert math.isinf(resolved_ratio([0.5, 2.0], level=1 - 1e-4))


# Trials


def test_a_trial_that_is_not_run_costs_nothing_and_one_of_the_baseline_neither(tmp_path):
    ledger = tmp_path / "ideas"
    trial = Trial(EverySecond, lab=lab(), out=tmp_path / "a", ledger=ledger, **SMALL)
    assert trial.settings.first_seed == FIRST and not ledger.exists()
    wb.trial({"same": "grpo"}, lab=lab(), out=tmp_path / "b", ledger=ledger, **SMALL)
    assert Ledger(ledger).table.empty


def test_a_trial_knows_before_it_runs_whether_the_ledger_has_its_ideas(tmp_path):
    """A call that only looks has the seeds and the levels of its own ideas, and of no others."""
    options = {"lab": lab(), "out": tmp_path / "one", "ledger": tmp_path / "ideas", **SMALL}
    trial = Trial({"mine": EverySecond}, **options)
    trial._charge()
    assert Trial({"mine": EverySecond}, **options).settings.levels == trial.settings.levels
    other = Trial({"mine": edited}, **options).settings
    assert (other.first_seed, other.levels) == (FIRST + 2, {})
    assert (trial.settings.first_seed, [*trial.settings.levels]) == (FIRST, ["mine"])
    # Another lab is another trial too.
    options["lab"] = wb.labs.tiny(pool=16, levels=(1,), held_out=30, samples=8)
    assert Trial({"mine": EverySecond}, **options).settings.first_seed == FIRST + 2


@pytest.mark.long
def test_trials_of_a_ledger_are_tried_at_their_level_on_fresh_seeds(tmp_path):
    said = []
    options = {"ledger": tmp_path / "ideas", "report": said.append}
    make(tmp_path / "one", EverySecond, **options)
    trial = make(tmp_path / "two", {"renamed": EverySecond}, **options)
    table = Ledger(tmp_path / "ideas").table
    assert table["label"].tolist() == ["EverySecond", "renamed"]
    assert table["again"].fillna(0).tolist() == [0, 1]
    assert any("at most 4 to make, likely 4, about " in line for line in said)
    assert any("renamed is idea 2" in line and "before as idea 1" in line for line in said)
    assert table["verdict"].notna().all() and table["seeds"].tolist() == [2, 2]
    made = {
        int(path.name.removeprefix("seed-"))
        for name in ("one", "two")
        for path in (tmp_path / name / "runs").glob("*/seed-*")
    }
    assert made == {FIRST, FIRST + 1, FIRST + 2, FIRST + 3}
    # The interval is that of the level which the idea was given.
    answer = trial.answers["renamed"]
    records = trial.records
    looked = wb.trials.answer.answers(
        {"renamed": records["renamed"]},
        records["grpo"],
        target=0.48,
        baseline="grpo",
        looks=(2,),
        level=float(table["level"][1]),
    )["renamed"]
    assert np.array_equal([answer.low, answer.high], [looked.low, looked.high], equal_nan=True)
    # Neither without its ledger nor with another idea does it go on.
    with pytest.raises(ValueError, match="holds another trial"):
        make(tmp_path / "two", {"renamed": EverySecond}, first_seed=FIRST + 2)
    with pytest.raises(ValueError, match="holds another trial"):
        make(tmp_path / "two", {"renamed": edited}, **options)
    with pytest.raises(ValueError, match="cannot join"):
        make(tmp_path / "two", {"renamed": EverySecond, "few": wb.methods.grpo(n=4)}, **options)
    assert len(Ledger(tmp_path / "ideas").table) == 2


@pytest.mark.long
def test_a_scripted_searcher_of_twenty_random_selectors(tmp_path, monkeypatch):
    """By the command alone: exit statuses, JSON, and one ledger of all that was tried."""
    problems = wb.labs.tiny(pool=32, levels=(1, 2), held_out=0).problems
    small = dataclasses.replace(lab(), problems=problems)
    monkeypatch.setattr("workbench.config.lab", lambda name, options: small)
    monkeypatch.chdir(Path(searcher.__file__).parent)

    def call(*command):
        done = CliRunner().invoke(main, command)
        assert done.exit_code != 1, done.stderr
        return done.exit_code, done.stdout

    options = ["--rounds", "4", "--seeds", "2", "2", "--rate", "5e-3", "--tuning-seeds", "1"]
    options += ["--target", "0.48", "--jobs", "2"]
    transcript = searcher.search(tmp_path, call, options)
    assert len(transcript) == searcher.IDEAS / searcher.AT_ONCE
    status, told = call("ledger", str(tmp_path / "ideas"), "--json")
    ledger = json.loads(told)
    ideas = ledger["ideas"]
    assert status == 0 and [idea["number"] for idea in ideas] == [*range(1, 21)]
    assert len({idea["idea"] for idea in ideas}) == 20, "each is an idea of its own"
    assert all(idea["verdict"] for idea in ideas) and not any(idea["again"] for idea in ideas)
    wins = [idea["number"] for idea in ideas if idea["verdict"] == "better"]
    assert sum(idea["level"] for idea in ideas) <= 0.05 * max(len(wins), 0.5)
    # Each call had seeds that no earlier one had.
    places = [idea["first_seed"] for idea in ideas]
    assert places == sorted(places) and len(set(places)) == len(transcript)
    # The same search again makes no run and charges nothing.
    assert searcher.search(tmp_path, call, options) == transcript
    assert json.loads(call("ledger", str(tmp_path / "ideas"), "--json")[1]) == ledger
    print("\n".join(transcript))


def test_the_page_for_programs_leads_somewhere_and_its_idea_passes_the_check():
    root = Path(__file__).parent.parent
    page = (root / "AGENTS.md").read_text()
    assert len(page.splitlines()) < 80, "one page"
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (root / link).exists(), link
    [code] = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(textwrap.dedent(code), names)
    wb.check(names["Shortest"]())  # raises for what is wrong
    [command] = re.findall(r"\$ python -m workbench (trial .*)", page)
    options = {option for each in app.commands["trial"].params for option in each.opts}
    assert set(re.findall(r"--[a-z-]+", command)) <= options
