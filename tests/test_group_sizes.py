"""What the page of the leaderboard says of group sizes, from the recorded runs."""

import re
from pathlib import Path

import pytest

import workbench as wb
from workbench.analysis.curves import of_common_seeds, read
from workbench.analysis.intervals import holm
from workbench.analysis.targets import crossings, ratio_to_target

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "leaderboard.md").read_text()
SIZES = {"4": "grpo-4", "5": "grpo-5", "6": "grpo-6", "8": "grpo", "12": "grpo-12"}


@pytest.fixture(scope="module")
def costs():
    curves = read(wb.load_all(ROOT / "data" / "runs" / "group-sizes"))
    return {label: crossings(dict(by_seed), 0.51, "rollouts") for label, by_seed in curves.items()}


def ratio(costs, arm, other):
    return ratio_to_target(*of_common_seeds(costs[arm], costs[other]))


def shown(cell):
    return [float(number) for number in re.findall(r"[\d.]+", cell)]


@pytest.mark.parametrize("size, label", SIZES.items())
def test_the_table_is_that_of_the_runs(costs, size, label):
    row = re.search(rf"^\| GRPO with {size} \| (.*) \| (.*)\|$", PAGE, re.MULTILINE)
    over, of_ar3po = map(shown, row.groups())
    pairs = [(over, label, "grpo"), (of_ar3po, "ar3po", label)]
    for numbers, arm, other in pairs:
        if len(numbers) == 3:
            found = ratio(costs, arm, other)
            assert numbers == pytest.approx([found.value, found.low, found.high], abs=0.0051)


def test_something_is_left_of_ar3po_against_every_smaller_group(costs):
    found = [ratio(costs, "ar3po", SIZES[size]) for size in ("4", "5", "6", "8")]
    corrected = holm([each.p_value(1.0) for each in found])
    assert max(corrected) == pytest.approx(0.033, abs=0.001)
    assert all(each.value < 1 for each in found)
    smaller = [ratio(costs, SIZES[size], "grpo") for size in ("4", "5", "6")]
    assert all(each.low < 1 < each.high for each in smaller)


NEAREST = {"aero": "12", "ar3po-beta": "5", "ar3po-mopps": "5", "duet": "4", "pilot-commit": "12"}
NEAREST |= {"cppo": "16", "knapsack-maxvar": "16", "reinforce-ada": "16"}
NEAREST |= {"prefix-rl": "16", "arrol": "16", "pods": "16"}


@pytest.mark.long
def test_every_method_that_samples_another_number_stands_beside_the_group_nearest_to_it(costs):
    board = wb.load_all(ROOT / "data" / "runs" / "leaderboard")
    groups = {label: board[label] for label in (*NEAREST, "grpo-16")}
    curves = read(groups)
    found = {label: crossings(dict(runs), 0.51, "rollouts") for label, runs in curves.items()}
    p_values = []
    for label, size in NEAREST.items():
        other = found["grpo-16"] if size == "16" else costs[SIZES[size]]
        measured = ratio_to_target(*of_common_seeds(found[label], other))
        ends = re.search(rf"`{label}`\s(\S+)\s\[(\S+),\s(\S+?)\]", PAGE.partition("nearest")[2])
        numbers = [float(number.replace("open", "inf")) for number in ends.groups()]
        known = [measured.value, measured.low, measured.high]
        assert numbers == pytest.approx(known, abs=0.0051), label
        p_values.append(measured.p_value(1.0) if measured.value < 1 else 1.0)
    assert min(holm(p_values)) > 0.05
    # All others sample eight of a problem, within a tenth, and the board compares them with eight.
    for label, records in board.items():
        sampled = [record.rounds["rollouts"] / record.rounds["problems"] for record in records]
        mean = sum(each.mean() for each in sampled) / len(sampled)
        if label not in (*NEAREST, "ar3po", "grpo-16"):
            assert 7.2 < mean < 9, label
