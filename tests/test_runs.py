"""Records are grouped by their settings, never by their names alone."""

import pytest
from written_records import write

import workbench as wb
from papers.measures import rounds_per_epoch
from workbench import plots
from workbench.analysis import runs
from workbench.records import Record


def grpo(path, n, seed=0, folder=None):
    """A record of grpo(n) in a directory whose name says nothing."""
    place = path / (folder or f"run-{n}-{seed}")
    write(place, "grpo", seed, method={"allocator": {"is": "allocators.Uniform", "n": n}})
    return moved(place, seed)


def moved(place, seed):
    """The record at place/grpo/seed-N, in a directory that gives no label."""
    (place / "grpo" / f"seed-{seed}").rename(place / "record")
    return Record(place / "record")


def test_settings_of_one_name_are_kept_apart(tmp_path):
    """grpo(4) and grpo(8), both of seed 0, were once "grpo (n = 2)"."""
    found = runs.labelled([grpo(tmp_path, 4), grpo(tmp_path, 8), grpo(tmp_path, 8, seed=1)])
    assert list(found) == ["grpo (allocator.n=4)", "grpo (allocator.n=8)"]
    assert [len(group) for group in found.values()] == [1, 2]


def test_runs_on_other_problems_are_no_seeds_of_one_another(tmp_path):
    """What a lab of one's own says of itself may be the same."""
    records = []
    for seed, digest in enumerate(["6e6a", "78db", "78db"]):
        write(tmp_path / str(seed), "grpo", seed, data={"problems": digest, "held_out": "2f61"})
        records.append(moved(tmp_path / str(seed), seed))
    found = runs.labelled(records)
    assert list(found) == ["grpo (problems=6e6a)", "grpo (problems=78db)"]
    assert [len(group) for group in found.values()] == [1, 2]


def test_curves_of_one_name_are_kept_apart(tmp_path):
    ax = plots.learning_curve([grpo(tmp_path, 4), grpo(tmp_path, 8)])
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["grpo (allocator.n=4) (1 seed)", "grpo (allocator.n=8) (1 seed)"]


@pytest.mark.parametrize(
    "draw",
    [plots.overview, plots.accuracy_by_level, plots.zero_gradient, plots.sampled_and_greedy],
    ids=lambda draw: draw.__name__,
)
def test_figures_of_one_setting_refuse_several(tmp_path, draw):
    with pytest.raises(ValueError, match=r"2 different settings \(grpo \(allocator.n=4\), "):
        draw([grpo(tmp_path, 4), grpo(tmp_path, 8)])


def test_a_label_that_holds_several_settings_is_refused(tmp_path):
    mixed = {"mine": [grpo(tmp_path, 4), grpo(tmp_path, 8)]}
    with pytest.raises(ValueError, match="label 'mine': runs of 2 different settings"):
        runs.arms(mixed)


def test_seeds_of_one_setting_in_directories_of_several_labels_are_one_arm(tmp_path):
    records = []
    for label, seed in (("a", 0), ("b", 1)):
        write(tmp_path / label, "grpo", seed)
        (tmp_path / label / "grpo").rename(tmp_path / label / label)
        records.append(Record(tmp_path / label / label / f"seed-{seed}"))
    assert list(runs.labelled(records)) == ["a", "b"]
    assert [record.manifest["seed"] for record in runs.one_setting(records, "arm")] == [0, 1]


def test_a_seed_that_occurs_twice_is_another_run(tmp_path):
    twice = [grpo(tmp_path, 4), grpo(tmp_path, 4, folder="again")]
    labels = list(runs.labelled(twice))
    assert len(labels) == 2 and all("record)" in label for label in labels)
    with pytest.raises(ValueError, match="a seed occurs twice"):
        runs.one_setting(twice)


def test_how_often_a_run_is_evaluated_does_not_divide_seeds(tmp_path):
    records = []
    for seed, every in ((0, 2), (1, 4)):
        write(tmp_path / str(seed), "grpo", seed, arguments={"evaluate_every": every})
        records.append(moved(tmp_path / str(seed), seed))
    assert list(runs.labelled(records)) == ["grpo"]
    write(tmp_path / "other", "grpo", 2, arguments={"learning_rate": 1.0})
    found = runs.labelled([*records, moved(tmp_path / "other", 2)])
    assert list(found) == ["grpo (learning_rate=none)", "grpo (learning_rate=1.0)"]


def test_directories_give_their_label(tmp_path):
    for seed in (1, 0):
        write(tmp_path, "mine", seed)
    write(tmp_path, "other")
    found = runs.load_all(tmp_path)
    assert list(found) == ["mine", "other"]
    assert [record.manifest["seed"] for record in found["mine"]] == [0, 1]
    assert list(runs.load_all(tmp_path / "mine", tmp_path)) == ["mine", "other"]
    assert list(runs.by_seed(found["mine"])) == [0, 1]


def test_rounds_of_an_epoch(tmp_path):
    write(tmp_path, "a", lab={"pool": 50}, arguments={"problems_per_round": 16})
    write(tmp_path, "b", lab={"pool": None}, arguments={"problems_per_round": 16})
    assert rounds_per_epoch(Record(tmp_path / "a" / "seed-0")) == 4
    assert rounds_per_epoch(Record(tmp_path / "b" / "seed-0")) is None


@pytest.mark.parametrize(
    "bad", ["runs/pods", {"a": "runs/pods"}, [1], None], ids=["path", "dict", "number", "none"]
)
def test_paths_in_place_of_records_are_named(bad):
    with pytest.raises(TypeError, match="a Record, a list of them, or a dict"):
        wb.plots.learning_curve(bad)


def test_no_records_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="path="):
        runs.load_all(tmp_path)
    with pytest.raises(ValueError, match="at least one"):
        runs.labelled([])
    with pytest.raises(ValueError, match="records"):
        runs.arms({})
