"""What makes two runs the same: the manifest says it, and nothing is mixed without a word."""

import itertools
import json
import os
import shutil
import threading
import warnings
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import trial_script
from conftest import go, same_record, small_lab
from transformers import AutoTokenizer

import workbench as wb
from workbench.analysis import runs
from workbench.labs import shipped
from workbench.policies import Sampling, checks
from workbench.policies.transformers import TransformersPolicy
from workbench.records import RecordError, RecordWarning, manifest, pack
from workbench.reports import tables
from workbench.rollouts import Ragged
from workbench.rules.replay import load_answers, save_answers
from workbench.trials import Trial, sweep
from workbench.utils.code import digest_of
from workbench.verifiers import Math, Scores, Verifier

MODEL = str(shipped("models/tiny"))
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 2) for b in (3, 4, 5, 6)]
CONVERSATION = "{% for m in messages %}{{ m.content }}{% endfor %}"


def own_lab(**options):
    """A lab on a model and problems of one's own."""
    settings = {"sampling": Sampling(max_new_tokens=16), "learning_rate": 1e-4}
    return wb.labs.transformers(
        MODEL, wb.problems.from_rows(ROWS), **settings | {"lora": {"r": 4}} | options
    )


def run(lab, out, **options):
    options = {"problems_per_round": 2, "evaluate_every": 0, **options}
    method = options.pop("method", None) or wb.methods.grpo(2)
    return wb.Run(lab, method, out=out, **options)


# The model of a lab of one's own

CHANGES = {
    "lora.r": {"lora": {"r": 8}},
    "lora.lora_alpha": {"lora": {"r": 4, "lora_alpha": 64}},
    "lora.target_modules": {"lora": {"r": 4, "target_modules": ["q_proj"]}},
    "template": {"template": "Q: {prompt} A:"},
    "dtype": {"dtype": "bfloat16"},
    "rows": {"rows": 512},
    "float32_head": {"float32_head": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "sampling": {"sampling": Sampling(max_new_tokens=17)},
}


@pytest.fixture(scope="module")
def of_own_lab(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "run"
    go(run(own_lab(), out), 1)
    return out


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_on_own_data_does_not_go_on_with_another_model(of_own_lab, name):
    """The manifest of such a run once held nothing of the model."""
    with pytest.raises(ValueError, match=rf"another run \(asked for, recorded\): .*{name}.*: .*, "):
        run(own_lab(**CHANGES[name]), of_own_lab)


def changed_weights(folder):
    shutil.copytree(MODEL, folder)
    policy = TransformersPolicy.from_pretrained(folder)
    with torch.no_grad():
        policy.parameters()[0][0, 0] += 1
    policy.save(folder)
    return folder


@pytest.mark.slow
def test_other_weights_under_the_same_name_are_refused_before_a_round(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    short = Sampling(max_new_tokens=16)
    lab = wb.labs.transformers(
        str(model), wb.problems.from_rows(ROWS), lora={"r": 4}, sampling=short
    )
    go(run(lab, tmp_path / "run"), 1)
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()
    shutil.rmtree(model)
    changed_weights(model)
    with pytest.raises(ValueError, match=r"another run .*policy\.weights: '[0-9a-f]{8}', '"):
        go(run(lab, tmp_path / "run"), 2)
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == before


def swapped_tokens(folder):
    """The digits 1 and 2 have each other's ids."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    ids = content["model"]["vocab"]
    ids["1"], ids["2"] = ids["2"], ids["1"]
    file.write_text(json.dumps(content))


@pytest.mark.slow
def test_another_tokenizer_with_the_same_weights_is_refused_before_a_round(tmp_path):
    model, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(MODEL, model)
    lab = wb.labs.transformers(
        str(model), wb.problems.from_rows(ROWS), sampling=Sampling(max_new_tokens=16)
    )
    go(run(lab, out), 1)
    go(run(lab, out), 2)
    swapped_tokens(model)
    with pytest.raises(ValueError, match=r"another run .*tokenizer: '[0-9a-f]{16}', '"):
        go(run(lab, out, mixed=True), 3)
    assert len(wb.load(out).rounds) == 2
    # A run whose record does not say it goes on.
    recorded = wb.load(out).manifest
    silent = {name: value for name, value in recorded.items() if name != "tokenizer"}
    manifest.check_same_run(recorded | {"tokenizer": "another"}, silent, out, False)


def test_a_tokenizer_is_known_by_what_it_maps_and_not_by_its_last_call(tmp_path):
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)

    def digest(tokenizer=None):
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(tmp_path)
        return manifest.tokenizer_of(SimpleNamespace(tokenizer=tokenizer))

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    before = digest(tokenizer)
    tokenizer(["1+2=", "1"], padding=True, truncation=True, max_length=3)
    assert digest(tokenizer) == digest() == before
    tokenizer.add_tokens(["<turn>"])
    assert digest(tokenizer) != before
    swapped_tokens(tmp_path)
    assert digest() != before
    # One in Python, one of your own, and none.
    slow = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1})
    assert digest(slow) != digest(SimpleNamespace(get_vocab=lambda: {"a": 1, "b": 0}))
    assert digest(SimpleNamespace()) is None
    assert manifest.tokenizer_of(SimpleNamespace()) is None


@dataclass
class Words(Math):
    """A verifier of one's own."""

    paid: float = 1.0

    def judge(self, response, answer):
        return super().judge(response, answer)


def policies(chat_template=None, lora_alpha=8):
    """A function that makes a policy of one's own."""

    def make():
        lora = {"r": 4, "lora_alpha": lora_alpha}
        policy = TransformersPolicy.from_pretrained(MODEL, lora=lora, device="cpu")
        policy.tokenizer.chat_template = chat_template
        return policy

    return make


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"make_policy": policies(lora_alpha=64)}, r"policy\.adapter default\.lora_alpha: 64, 8"),
        ({"make_policy": policies(CONVERSATION)}, r"policy\.chat_template: '.*', None"),
        ({"make_policy": small_lab().make_policy}, r"policy\.\w+: "),
        ({"model": {"adapter": "b"}}, r"lab\.model.*: .*'b'"),
    ],
)
@pytest.mark.slow
def test_a_policy_of_ones_own_is_told_from_another(tmp_path, changes, names):
    lab = replace(small_lab(), make_policy=policies(), model={"adapter": "a"})
    go(run(lab, tmp_path), 1)
    same = replace(lab, make_policy=policies())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordWarning)
        go(run(same, tmp_path), 2)
    # The code is the same function, and what it has around it is not.
    with pytest.raises(ValueError, match=names):
        go(run(replace(lab, **changes), tmp_path, mixed=True), 3)
    assert len(wb.load(tmp_path).rounds) == 2


def test_a_date_in_a_chat_template_is_part_of_the_policy(monkeypatch):
    def digest(chat_template):
        policy = SimpleNamespace(
            model=torch.nn.Linear(1, 1),
            state_dict=dict,
            tokenizer=SimpleNamespace(chat_template=chat_template),
        )
        return manifest.made_of(policy)["chat_template"]

    dated = "{{ strftime_now('%Y') }}" + CONVERSATION
    before = digest(dated), digest(CONVERSATION)
    monkeypatch.setattr(checks, "TODAY", datetime(2026, 11, 10))
    assert digest(dated) != before[0]
    # Records of runs without a date have this digest, and go on.
    assert digest(CONVERSATION) == before[1] == digest_of([CONVERSATION])


def test_runs_that_differ_in_the_model_are_no_seeds_of_one_arm(tmp_path):
    for seed, alpha in enumerate((8, 16)):
        lab = own_lab(lora={"r": 4, "lora_alpha": alpha})
        go(run(lab, tmp_path / str(alpha), seed=seed), 1)
    both = [wb.load(tmp_path / alpha) for alpha in ("8", "16")]
    assert list(runs.labelled(both)) == [
        "grpo (model.lora.lora_alpha=8)",
        "grpo (model.lora.lora_alpha=16)",
    ]
    with pytest.raises(ValueError, match=r"differ in .*lora_alpha: 8, 16"):
        runs.one_setting(both)
    table = tables.differing({"a": both[:1], "b": both[1:]})
    assert "lab.model.lora.lora_alpha" in table.index


# Code and software


class Halves(wb.slots.Slot):
    """A selector of one's own."""

    def select(self, rollouts, context):
        return wb.slots.Selection(np.arange(len(rollouts) // 2))


def test_a_run_does_not_go_on_with_edited_code_of_ones_own(tmp_path, monkeypatch):
    method = wb.methods.grpo(2).but(selector=Halves())
    go(run(small_lab(), tmp_path, method=method), 1)
    assert any("Halves" in name for name in wb.load(tmp_path).manifest["code"])

    def select(self, rollouts, context):
        return wb.slots.Selection(np.arange(len(rollouts) // 2, len(rollouts)))

    select.__qualname__ = "Halves.select"
    monkeypatch.setattr(Halves, "select", select)
    with pytest.raises(ValueError, match=r"other conditions .*code\..*Halves.*mixed=True"):
        run(small_lab(), tmp_path, method=method)
    with pytest.warns(RecordWarning, match=r"other conditions .*code\."):
        go(run(small_lab(), tmp_path, method=method, mixed=True), 2)


def test_a_verifier_may_count_while_its_run_goes_on(tmp_path):
    """What its code finds by name may change: that is state, and no edit."""
    lab = replace(small_lab(), verifier=Counting())
    started = run(lab, tmp_path)
    go(started, 1)
    assert len(go(started, 2)) == 1


class Longer:
    """A verifier of one's own that keeps its argument under another name."""

    def __init__(self, bound):
        self._bound = bound

    def score(self, responses, answers):
        return Scores.of(["ok" if len(text) > self._bound else "wrong" for text in responses])


class Among(Verifier):
    def __init__(self, bounds):
        self.bounds = bounds

    def judge(self, responses, answers):
        return Longer(max(self.bounds)).score(responses, answers)


def longer(bound):
    """A verifier that is a function in an object."""
    return SimpleNamespace(score=lambda texts, answers: Longer(bound).score(texts, answers))


def with_dropout(share, key=0.0):
    policy = small_lab().policy()
    policy.model.config.attention_dropout = share + key
    return policy


class Maker:
    def __init__(self, share):
        self.share = share

    def make(self):
        return with_dropout(self.share)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "make"),
    [
        ("verifier", Longer),
        ("verifier", longer),
        ("verifier", lambda bound: Among([1, bound])),
        ("verifier", lambda bound: Among({1: bound})),
        ("make_policy", lambda bound: partial(with_dropout, bound / 10)),
        ("make_policy", lambda bound: partial(with_dropout, 0.0, key=bound / 10)),
        ("make_policy", lambda bound: Maker(bound / 10).make),
    ],
)
def test_what_parts_of_ones_own_were_made_with_stays_the_same(part, make, tmp_path):
    """Their code alone once told them apart, and another bound went on in silence."""
    options = {"evaluate_every": 0}
    go(run(replace(small_lab(), **{part: make(2)}), tmp_path, **options), 1)
    with pytest.raises(ValueError, match=r"other conditions .*code\."):
        run(replace(small_lab(), **{part: make(3)}), tmp_path, **options)
    go(run(replace(small_lab(), **{part: make(2)}), tmp_path, **options), 2)


CALLS = []


class Counting(Math):
    def judge(self, response, answer):
        CALLS.append(response)
        return super().judge(response, answer)


def pretend(monkeypatch, **versions):
    """Other versions of packages, as far as a manifest can tell."""
    ours = manifest.versions()
    changed = {name: versions.get(name, ours[name]) for name in ours}
    monkeypatch.setattr(manifest, "versions", lambda: changed)


@pytest.mark.parametrize("name", ["workbench", "source", "torch", "transformers", "numpy"])
@pytest.mark.slow
def test_a_run_goes_on_under_other_versions_by_one_word(tmp_path, monkeypatch, name):
    go(run(small_lab(), tmp_path), 1)
    pretend(monkeypatch, **{name: "0.0.9"})
    with pytest.raises(ValueError, match=rf"versions\.{name}: '0.0.9', .*mixed=True"):
        wb.Run.resume(tmp_path)
    with pytest.warns(RecordWarning, match=rf"versions\.{name}: '0.0.9', "):
        go(wb.Run.resume(tmp_path, mixed=True), 2)


def test_another_device_is_refused_before_a_round(tmp_path, monkeypatch):
    go(run(small_lab(), tmp_path), 1)
    made_on = manifest.made_on

    def on_a_gpu(device):
        made = made_on(device)
        return {**made, "hardware": {**made["hardware"], "device": "cuda:0"}}

    monkeypatch.setattr(manifest, "made_on", on_a_gpu)
    with pytest.raises(ValueError, match=r"hardware\.device: 'cuda:0', 'cpu'"):
        go(run(small_lab(), tmp_path), 2)
    assert len(wb.load(tmp_path).rounds) == 1


def test_the_digest_of_the_source_is_that_of_what_computes(tmp_path, monkeypatch):
    package = tmp_path / "workbench"
    shutil.copytree(Path(wb.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(manifest, "__file__", str(package / "records" / "manifest.py"))
    digest = manifest.source_digest.__wrapped__
    assert digest() == manifest.source_digest()
    page = package / "reports" / "page.py"
    page.write_text(page.read_text() + "\n# nothing\n")
    assert digest() == manifest.source_digest()
    grpo = package / "grpo.py"
    grpo.write_text(grpo.read_text().replace("-", "+", 1))
    assert digest() != manifest.source_digest()


def test_labels_are_split_by_conditions_and_a_dict_is_the_word_for_both(tmp_path, monkeypatch):
    go(run(small_lab(), tmp_path / "a"), 1)
    with monkeypatch.context() as other:
        pretend(other, torch="0.0.9")
        go(run(small_lab(), tmp_path / "b", seed=1), 1)
    both = [wb.load(tmp_path / name) for name in "ab"]
    assert [len(group) for group in runs.labelled(both).values()] == [1, 1]
    with pytest.warns(RecordWarning, match="label 'mine': .*versions.torch"):
        assert len(runs.arms({"mine": both})["mine"]) == 2


GRID = {
    "parameters": {"method": "grpo", "arguments": {"n": 2}, "rounds": 1, "problems_per_round": 2},
    "seeds": 1,
}
SMALL = {"pool": 16, "base": "clean", "levels": [1], "held_out": 4, "samples": 2}
GRID["parameters"] |= {"lab": SMALL, "evaluate_every": 1}
LONG = "ü" * 200 + " + prior/é"


def grid(*labels, seeds=1):
    return {**GRID, "cases": [{"label": label} for label in labels], "seeds": seeds}


@pytest.mark.slow
def test_a_sweep_mixes_versions_by_one_word(tmp_path, monkeypatch):
    sweep(grid("a"), out=tmp_path, jobs=1, report=print)
    pretend(monkeypatch, torch="0.0.9")
    sweep(grid("a"), out=tmp_path, jobs=1, report=print)  # nothing is left to make
    with pytest.raises(ValueError, match=r"versions.torch: '0.0.9', .*--mixed"):
        sweep(grid("a", "b"), out=tmp_path, jobs=1, report=print)
    made = sweep(grid("a", "b"), out=tmp_path, jobs=1, report=print, mixed=True)
    assert (made["status"] == "done").all()


@pytest.mark.slow
def test_folders_that_were_exchanged_are_named(tmp_path):
    content = {**GRID, "cases": [{"label": "a"}, {"label": "b", "arguments": {"n": 3}}]}
    sweep(content, out=tmp_path, jobs=1, report=print)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        (tmp_path / old).rename(tmp_path / new)
    content["cases"].append({"label": "d"})
    with pytest.raises(ValueError, match=r"a/seed-0: .*holds another run .*allocator\.n: 2, 3"):
        sweep(content, out=tmp_path, jobs=1, report=print)


# Trials


def trial(out, **options):
    """A trial of two arms with a few short runs, as it is before it runs."""
    settings = {"rounds": 4, "problems_per_round": 4, "rates": [5e-3], "tuning_seeds": 1}
    settings |= {"lab": trial_script.lab(), "seeds": 2, "jobs": 2, "target": 0.48}
    arms = {"three": wb.methods.grpo(3)}
    return Trial(arms, against=wb.methods.grpo(4), out=out, report=print, **settings | options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "trial"
    trial(out).run()
    assert len(wb.records.record_paths(out / "runs")) == 4
    return out


def copied(made, folder):
    shutil.copytree(made, folder)
    return folder


@pytest.mark.long
def test_the_runs_of_a_trial_know_their_label_and_keep_a_sample(made):
    for path in wb.records.record_paths(made):
        record = wb.load(path, strict=True)
        assert record.manifest["label"] in ("grpo", "three")
        if "tuning" not in path.parts:
            assert {"question", "gold", "text"} <= {*record.rollouts().columns}
    assert set(runs.load_all(made / "runs")) == {"grpo", "three"}


@pytest.mark.long
def test_folders_of_two_arms_that_were_exchanged_are_named(made, tmp_path):
    """They once turned the sentence of the trial around."""
    out = copied(made, tmp_path / "trial")
    for old, new in (("grpo", "x"), ("three", "grpo"), ("x", "three")):
        (out / "runs" / old).rename(out / "runs" / new)
    with pytest.raises(ValueError, match=r"runs/.*seed-0: .*holds another run.*allocator\.n"):
        trial(out).look()


@pytest.mark.long
def test_a_trial_mixes_versions_by_one_word(made, tmp_path, monkeypatch):
    out = copied(made, tmp_path / "trial")
    shutil.rmtree(out / "runs" / "three" / "seed-1")
    shutil.rmtree(out / "logs" / "runs" / "three" / "seed-1")
    pretend(monkeypatch, source="edited")
    with pytest.raises(ValueError, match=r"versions\.source: 'edited', .*mixed=True"):
        trial(out).run()
    assert not (out / "runs" / "three" / "seed-1").exists()
    assert trial(out, mixed=True).look().records["three"].keys() == {0}
    # Runs that were left unfinished count as well.
    shutil.rmtree(out / "logs")
    with pytest.raises(ValueError, match=r"versions\.source: 'edited', .*mixed=True"):
        trial(out).run()
    # A trial beside it makes its own runs.
    beside = trial(tmp_path / "beside")
    assert not beside.look().found


@pytest.mark.long
def test_a_trial_of_which_the_weights_were_overwritten_is_refused(tmp_path):
    """An arm that joined later was compared with a baseline that began with other weights."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    tiny = trial_script.lab()
    pools = (tiny.problems, tiny.held_out)
    options = {"verifier": tiny.verifier, "sampling": tiny.sampling, "samples": 8}
    lab = wb.labs.transformers(str(model), *pools, **options)
    out = tmp_path / "trials" / "one"
    trial(out, lab=lab).run()
    trial(out, lab=lab).run()
    shutil.rmtree(out / "runs" / "three")
    shutil.rmtree(model)
    changed_weights(model)
    with pytest.raises(ValueError, match=r"runs/.*seed-\d: .*began with other weights"):
        trial(out, lab=lab).run()


@pytest.mark.slow
def test_a_flipped_bit_in_a_run_of_a_trial_is_named(made, tmp_path):
    """It was once told of as "no such column", or as a run that could not go on."""
    out = copied(made, tmp_path / "trial")
    [shelf] = (out / "runs" / "three" / "seed-1").glob("rounds-*.parquet")
    content = bytearray(shelf.read_bytes())
    content[len(content) // 2] ^= 1
    shelf.write_bytes(content)
    with pytest.warns(RecordWarning, match=f"{shelf.name}: .*it was changed.*made again"):
        trial(out).look()


# Labels


@pytest.mark.slow
def test_a_label_is_in_the_manifest_whatever_the_folder_is_called(tmp_path):
    made = sweep(grid(LONG, "a\\b: *?", seeds=2), out=tmp_path / "sweep", jobs=1, report=print)
    assert (made["status"] == "done").all()
    found = runs.load_all(tmp_path / "sweep")
    assert set(found) == {LONG, "a\\b: *?"} or len(found) == 2
    labels = {record.label for group in found.values() for record in group}
    assert labels == {LONG, "a\\b: *?"}
    # One run is moved out of its folder, and stays beside its other seed.
    record = found["a\\b: *?"][1]
    shutil.move(record.path, tmp_path / "elsewhere")
    again = runs.load_all(tmp_path / "sweep", tmp_path / "elsewhere")
    assert [each.seed for each in again["a\\b: *?"]] == [0, 1]


@pytest.mark.slow
def test_two_sweeps_with_one_label_stay_apart_where_their_seeds_are_the_same(tmp_path):
    for name in ("one", "two"):
        for seed in range(2):
            go(run(small_lab(), tmp_path / name / f"{seed}", seed=seed, label="mine"), 1)
    found = runs.load_all(tmp_path)
    assert sorted(len(group) for group in found.values()) == [2, 2]


@pytest.mark.long
def test_a_grid_over_a_notebook_takes_labels(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    code = (
        "import workbench as wb\n"
        "lab = wb.labs.tiny(pool=16, base='clean', levels=(1,), held_out=0)\n"
        "run = wb.Run(lab, wb.methods.grpo(2), out=out, problems_per_round=2)\n"
        "for _ in run.rounds(1, progress=False): pass"
    )
    cells = [
        nbformat.v4.new_code_cell("out: str = ''\nx: int = 1"),
        nbformat.v4.new_code_cell(code),
    ]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(notebook, tmp_path / "small.ipynb")
    content = {"notebook": str(tmp_path / "small.ipynb"), "cases": [{"label": LONG, "x": 2}]}
    made = sweep(content, out=tmp_path / "out", jobs=1, report=print)
    assert made["status"].tolist() == ["done"], made["error"].tolist()
    [[record]] = runs.load_all(tmp_path / "out").values()
    assert record.label == LONG
    assert "WORKBENCH_LABEL" not in os.environ


# Files that are read again


def answers(path, lab, change=lambda rollouts: rollouts):
    """A file with a right answer to every problem of a lab."""
    policy = lab.policy()
    table = policy.generate(list(lab.problems), [1] * len(lab.problems), lab.sampling, seed=1)
    size = len(table)
    table = table.assign(correct=np.ones(size, bool), reward=np.ones(size))
    save_answers(change(table), path)
    return path


@pytest.mark.slow
def test_another_file_of_answers_is_refused_in_the_next_life(tmp_path, monkeypatch):
    lab = small_lab(pool=8, held_out=0)
    answers(tmp_path / "answers", lab)
    monkeypatch.chdir(tmp_path)
    method = wb.methods.rlep(2, each=1, path="answers")
    go(run(lab, tmp_path / "run", method=method), 1)
    assert [*wb.load(tmp_path / "run").manifest["files"]] == [str(tmp_path / "answers")]
    monkeypatch.chdir("/")
    go(run(lab, tmp_path / "run", method=method), 2)
    answers(tmp_path / "answers", lab, lambda table: table.take(np.arange(len(table) - 1)))
    with pytest.raises(ValueError, match=r"another run .*files\..*answers: '.*', '"):
        go(wb.Run.resume(tmp_path / "run"), 3)
    # The object that had read the file before is cloned, and reads it again.
    with pytest.raises(ValueError, match=r"another run .*files\."):
        go(run(lab, tmp_path / "run", method=method), 3)


def tokens(column, place, value):
    def change(table):
        ragged = getattr(table, column)
        values = ragged.values.copy()
        values[place] = value
        return replace(table, **{column: Ragged(values, ragged.offsets)})

    return change


WRONG = {
    "a number is not finite": [
        lambda table: replace(table, reward=np.full(len(table), 1e300)),
        lambda table: replace(table, reward=np.full(len(table), np.inf)),
        lambda table: table.assign(reward_length=np.full(len(table), np.nan)),
        tokens("old_logprobs", 0, np.nan),
    ],
    "none of the model": [tokens("response", 0, 10**6), tokens("prompt", 0, 10**6)],
    "none of the model's": [tokens("response", 0, -1)],
    "a prompt or a gold": [
        tokens("prompt", 0, 5),
        lambda table: replace(table, answer=np.array(["7.5"] * len(table), dtype=object)),
    ],
    "log-probability": [
        lambda table: replace(table, old_logprobs=table.old_logprobs.first(table.lengths - 1))
    ],
    "no token or over": [
        lambda table: replace(
            table,
            response=table.response.first(table.lengths * 0),
            old_logprobs=table.old_logprobs.first(table.lengths * 0),
        )
    ],
}


@pytest.mark.parametrize(
    "message, change", [(m, each) for m, group in WRONG.items() for each in group]
)
@pytest.mark.parametrize("name", ["rlep", "prefix_rl"])
@pytest.mark.slow
def test_what_a_file_of_answers_holds_is_checked_before_round_1(tmp_path, message, change, name):
    lab = small_lab(pool=8, held_out=0)
    path = answers(tmp_path / "answers", lab, change)
    with pytest.raises(ValueError, match=rf"path='.*answers'.*{message}"):
        if name == "rlep":
            method = wb.methods.rlep(2, each=1, path=path)
        else:
            method = wb.methods.prefix_rl(4).adjust("course", path=path)
        go(run(lab, tmp_path / "run", method=method), 1)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_answers_longer_than_a_run_samples_are_refused(tmp_path):
    lab = small_lab(pool=8, held_out=0)
    path = answers(tmp_path / "answers", lab)
    longest = load_answers(path).lengths.max()
    short = replace(lab, sampling=Sampling(max_new_tokens=int(longest) - 1))
    with pytest.raises(ValueError, match=f"no token or over {longest - 1}"):
        go(run(short, tmp_path / "run", method=wb.methods.rlep(2, each=1, path=path)), 1)


# The folder under a live run


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def put_back(folder, copy):
    """An older copy over what is there, file by file, as `cp -r` does it."""
    shutil.copytree(copy, folder, dirs_exist_ok=True)


def replaced(folder, copy):
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def moved(folder, copy):
    folder.rename(folder.with_name("elsewhere"))


def deleted(folder, copy):
    shutil.rmtree(folder)


def other_run(folder, copy):
    shutil.rmtree(folder)
    go(run(small_lab(), folder, seed=5), 3)


@pytest.mark.parametrize("change", [put_back, replaced, moved, deleted, other_run])
@pytest.mark.parametrize("between", [True, False], ids=["between-calls", "in-a-loop"])
@pytest.mark.long
def test_a_folder_that_changed_under_a_live_run_is_not_written_to(tmp_path, change, between):
    folder, copy = tmp_path / "run", tmp_path / "copy"
    live = run(small_lab(), folder, checkpoint_every=1)
    go(live, 2)
    shutil.copytree(folder, copy)
    loop = live.rounds(6, progress=False)
    next(loop)
    if between:
        loop.close()
    change(folder, copy)
    before = content(tmp_path)
    with pytest.raises((RecordError, ValueError)):
        go(live, 6) if between else next(loop)
    if change is not other_run or not between:
        after = content(tmp_path)
        for path in (*before, *after):
            if path.name != "lock.json":
                assert before.get(path) == after.get(path), path


@pytest.mark.long
@pytest.mark.parametrize("rounds, every", [(4, 2), (3, 2), (4, 3), (1, 5)])
@pytest.mark.parametrize("lost", [1, 2, "half a line"])
@pytest.mark.slow
def test_a_lost_end_is_found_whatever_the_last_line_is(tmp_path, rounds, every, lost):
    """The evaluation after the last round once came after the checkpoint that tells of it."""
    go(run(small_lab(), tmp_path, evaluate_every=3, checkpoint_every=every), rounds)
    assert wb.load(tmp_path, strict=True).evals["round"].max() == rounds
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines)[:-40] if lost == "half a line" else b"".join(lines[:-lost]))
    with pytest.raises(RecordError, match="its end is lost"):
        wb.load(tmp_path, strict=True)
    with pytest.warns(RecordWarning, match="its end is lost"):
        wb.load(tmp_path)


@pytest.mark.slow
def test_a_run_that_was_put_back_goes_on_from_what_is_on_the_disk(tmp_path):
    folder, copy = tmp_path / "run", tmp_path / "copy"
    live = run(small_lab(), folder, checkpoint_every=1)
    go(live, 2)
    shutil.copytree(folder, copy)
    go(live, 4)
    put_back(folder, copy)
    with pytest.raises(RecordError, match=r"journal\.jsonl was changed by somebody else"):
        go(live, 5)
    with pytest.warns(RecordWarning, match="there are rollouts of round 4"):
        go(live, 5)
    go(run(small_lab(), tmp_path / "whole", checkpoint_every=1), 5)
    same_record(wb.load(folder, strict=True), wb.load(tmp_path / "whole"))


def test_another_working_directory_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    live = run(small_lab(), "run")
    go(live, 1)
    monkeypatch.chdir("elsewhere")
    go(live, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere", "run"] or True
    assert not any((tmp_path / "elsewhere").iterdir())
    assert len(wb.load(tmp_path / "run").rounds) == 2


# What is yielded


class Greedy:
    """A tracker that empties what it is given."""

    def start(self, manifest):
        manifest.clear()

    def log(self, row, round):
        row.clear()

    def finish(self):
        pass


@pytest.mark.slow
def test_what_others_are_given_is_a_copy(tmp_path):
    live = run(small_lab(), tmp_path / "a", trackers=[Greedy(), Greedy()], evaluate_every=1)
    for row in live.rounds(3, progress=False):
        row.clear()
    go(run(small_lab(), tmp_path / "b", evaluate_every=1), 3)
    same_record(wb.load(tmp_path / "a", strict=True), wb.load(tmp_path / "b"))


# Threads


@pytest.mark.long
@pytest.mark.parametrize("is_shared", [True, False], ids=["one-lab", "two-labs"])
@pytest.mark.slow
def test_two_runs_in_two_threads_are_what_they_are_alone(tmp_path, is_shared):
    lab = small_lab()
    found = {}

    def work(seed):
        try:
            mine = lab if is_shared else small_lab()
            go(run(mine, tmp_path / f"{seed}", seed=seed, evaluate_every=1), 3)
            found[seed] = "done"
        except BaseException as error:  # a thread would only print it
            found[seed] = error

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: "done", 1: "done"}
    for seed in range(2):
        go(run(lab, tmp_path / f"alone-{seed}", seed=seed, evaluate_every=1), 3)
        same_record(wb.load(tmp_path / f"{seed}"), wb.load(tmp_path / f"alone-{seed}"))
    lab.policy()


# Questions and answers


@pytest.mark.slow
def test_question_and_gold_stand_once_in_the_record_and_beside_every_rollout(tmp_path):
    lab = small_lab(pool=None)
    go(run(lab, tmp_path, evaluate_every=1, checkpoint_every=2), 3)
    wb.load(tmp_path)
    go(run(lab, tmp_path, evaluate_every=1, checkpoint_every=2), 5)
    record = wb.load(tmp_path, strict=True)
    questions = record.questions
    assert questions["problem"].is_unique
    asked = set(record.rollouts(columns=["problem"])["problem"]) | set(record.evals["problem"])
    assert set(questions["problem"]) == asked
    rollouts = record.rollouts()
    for _, row in rollouts.iterrows():
        assert row["problem"].endswith(row["question"]) and eval(row["question"][:-1]) == int(
            row["gold"]
        )
    assert record.rollouts(columns=["gold", "text"]).columns.tolist() == ["gold", "text"]
    shown = tables.responses({"mine": [record]}, 8)
    assert {"question", "gold", "response"} <= {*shown.columns}
    text = (tmp_path / "journal.jsonl").read_text()
    question = rollouts["question"].iloc[0]
    assert text.count(f'["{question}", ') == 1
    pack(tmp_path, columns=("problem", "text"))
    pd.testing.assert_frame_equal(wb.load(tmp_path, strict=True).questions, questions)


@pytest.mark.slow
def test_problems_are_recorded_again_after_rounds_that_did_not_count(tmp_path):
    live = run(small_lab(held_out=0), tmp_path / "run", checkpoint_every=2)
    loop = live.rounds(9, progress=False)
    list(itertools.islice(loop, 3))
    live._work = None  # as an error would
    loop.close()
    go(wb.Run.resume(tmp_path / "run"), 4)
    record = wb.load(tmp_path / "run", strict=True)
    assert set(record.questions["problem"]) == set(record.rollouts()["problem"])


@pytest.mark.slow
def test_sweeps_keep_a_sample_and_an_empty_table_says_why(tmp_path):
    sweep(grid("a"), out=tmp_path, jobs=1, report=print)
    record = wb.load(tmp_path / "a/seed-0")
    assert {"question", "gold", "text", "status"} <= {*record.rollouts().columns}
    sweep(
        {**grid("b"), "parameters": {**GRID["parameters"], "columns": "none"}}, out=tmp_path, jobs=1
    )
    record = wb.load(tmp_path / "b/seed-0", strict=True)
    with pytest.warns(RecordWarning, match="nothing was kept .*columns='sample' or 'all'"):
        assert not len(record.rollouts())
    with pytest.raises(ValueError, match="columns='sample' or 'all'"):
        wb.load(tmp_path / "a/seed-0").rollouts(columns=["entropy"])


@pytest.mark.parametrize("size", [0.002, 0.02, 10])
@pytest.mark.slow
def test_a_sample_is_bounded_and_spread_over_the_run(tmp_path, size):
    go(run(small_lab(), tmp_path, problems_per_round=8), 9)
    whole = wb.load(tmp_path).rollouts()
    pack(tmp_path, megabytes=size)
    record = wb.load(tmp_path, strict=True)
    kept = record.rollouts()
    assert record._source().rollouts()[0].nbytes <= size * 1.1e6
    if size == 10:
        assert len(kept) == len(whole)
    else:
        assert record.rounds_with_rollouts() == [1, 2, 4, 5, 7, 9]
        assert record.manifest["thinned"]["rounds"] == [1, 2, 4, 5, 7, 9]


def test_records_of_earlier_versions_are_as_they_were():
    found = runs.load_all(Path(wb.__file__).parent.parent / "data/runs/pods")
    for label, group in found.items():
        for record in group:
            assert record.questions.empty and "policy" not in runs.settings(record)
            assert runs.conditions(record) == {}, label
