"""Records of strangers: whatever a manifest says, it runs no code and writes nothing.

Reading, comparing and resuming a record ends well or in an error of its own. An audit hook of the
interpreter watches meanwhile what Python does.
"""

import contextlib
import copy
import json
import os
import random
import shutil
import sys
import typing
import warnings
from pathlib import Path

import pytest
from conftest import small_lab
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from written_records import sign

import workbench as wb
from workbench.analysis import comparisons, curves
from workbench.config import rebuild, recorded_lab
from workbench.policies import Sampling
from workbench.problems import from_file
from workbench.records import RecordError
from workbench.reports.tables import configuration
from workbench.trials import grids
from workbench.utils.descriptions import describe
from workbench.utils.names import MORE_PAPERS
from workbench.verifiers import Math

pytestmark = pytest.mark.slow

SMALL = dict(problems_per_round=2, evaluate_every=1, checkpoint_every=2)


# What Python does meanwhile


class Watch:
    """Notes what the interpreter is asked to do that a manifest must never lead to."""

    FORBIDDEN = (
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.kill",
        "pty.spawn",
        "socket.connect",
        "socket.bind",
        "ctypes.dlopen",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.chmod",
        "os.truncate",
        "shutil.rmtree",
    )
    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    # Modules from here may be loaded at their first use.
    TRUSTED = (sys.prefix, sys.base_prefix, str(Path(wb.__file__).parent))

    def __init__(self):
        self.active = False
        self.seen = []
        sys.addaudithook(self.hook)  # there is no way to remove it

    def hook(self, event, arguments):
        if not self.active:
            return
        if event == "open":
            is_forbidden = bool(arguments[2] & self.WRITING)
        elif event == "exec":
            is_forbidden = not self.is_import(arguments[0])
        else:
            is_forbidden = event in self.FORBIDDEN
        # Torch makes a folder for its compiler as soon as a part of it is loaded.
        if is_forbidden and "torchinductor" not in str(arguments[0]):
            self.seen.append((event, *map(str, arguments)))

    def is_import(self, code):
        """Whether code is run because a module is loaded, or to read a type hint in its source."""
        if code.co_filename.startswith(self.TRUSTED):
            return True
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(("<frozen importlib", typing.__file__)):
                return True
            frame = frame.f_back
        return False

    @contextlib.contextmanager
    def __call__(self):
        self.seen = []
        self.active = True
        writes_bytecode = sys.dont_write_bytecode
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            self.active = False
            sys.dont_write_bytecode = writes_bytecode
        assert self.seen == []


watch = Watch()


def outcome(function):
    """What came of it: "ok", or the name of the error that says what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function()
        except (ValueError, RecordError, FileNotFoundError) as error:
            return type(error).__name__
    return "ok"


def look_at(path):
    """What somebody does who looks at a record, and what a report says of it in words."""
    record = wb.load(path)
    "".join(f"{name}{words}" for name, words in configuration([record]).items())
    for text in (repr(record), record._repr_html_(), record.label, str(record.warnings)):
        assert isinstance(text, str)
    record.accuracy()
    record.rollouts()


def compare(path, other):
    """The record beside one of our own, as `workbench compare` does it."""
    groups = comparisons.load_all(str(path), str(other))
    comparisons.comparable(groups)
    curves.spent(next(iter(groups.values()))[0], "rollouts")


# Records to put manifests into


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """Records of two rounds, with a learning, a replaying and a wrapped slot."""
    folder = tmp_path_factory.mktemp("strangers")
    methods = {
        "grpo": wb.methods.grpo(n=2),
        "ar3po": wb.methods.ar3po(k=2),
        "dapo": wb.methods.dapo(n=2),
        "cbs": wb.methods.cbs(n=2, scope="buffer"),
        "knapsack": wb.methods.knapsack(n=2),
    }
    lab = small_lab(pool=8, held_out=2, samples=1)
    for name, method in methods.items():
        run = wb.Run(lab, method, out=folder / name, **SMALL)
        list(run.rounds(2 if name == "grpo" else 1, progress=False))
    return folder


@pytest.fixture(scope="session")
def manifests(records):
    """Real manifests, some of labs on a model of one's own, and one of every further method."""
    found = [json.loads(path.read_text()) for path in sorted(records.glob("*/manifest.json"))]
    gym = {"family": "reasoning_gym", "name": "chain_sum", "n": 4, "seed": 0, "split": "train"}
    gym["instruction"] = "\nGive the answer in \\boxed{{}}."
    hub = {"family": "hub", "name": "gsm8k", "split": "train", "n": 4, "seed": 0}
    hub |= {"template": "{prompt}", "levels": None, "left_out": {}, "path": "nowhere.jsonl"}
    chains = {"family": "chains", "n": 4, "levels": [1, 2], "seed": 0, "split": "train"}
    sums = records / "sums.jsonl"
    sums.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+1=", "answer": "3"}\n')
    for problems in (chains, from_file(sums).config, gym, hub):
        lab = {
            "lab": "transformers",
            "model": str(wb.labs.shipped("models/tiny")),
            "revision": None,
            "lora": {"r": 4, "target_modules": "all-linear"},
            "dtype": "float32",
            "device": "cpu",
            "template": "{prompt}",
            "engine": "transformers",
            "max_length": None,
            "gpu_memory_utilization": 0.4,
            "learning_rate": 1e-4,
            "sampling": {**vars(Sampling()), "stop": ["\n"]},
            "samples": 1,
            "micro_tokens": 1000,
            "problems": problems,
            "held_out": None,
            "verifier": Math().config,
        }
        found.append({**found[0], "lab": lab, "arguments": {**found[0]["arguments"]}})
    for name in MORE_PAPERS:
        found.append({**found[0], "method": describe(getattr(wb.methods, name)())})
    return found


FIRST_FURTHER = 9  # the place of the first further method among the manifests


@pytest.fixture(scope="session")
def place(records, manifests, tmp_path_factory):
    """A record whose manifest is replaced again and again."""
    path = tmp_path_factory.mktemp("place") / "record"
    shutil.copytree(records / "grpo", path)
    # What is imported at its first use is imported now: some packages take more than a second.
    for manifest in manifests[:FIRST_FURTHER]:
        with contextlib.suppress(OSError):
            recorded_lab(manifest["lab"])
    wb.Run.resume(path)
    compare(path, records / "ar3po")
    look_at(path)
    return path


def try_all(path, other, text):
    """Look at, compare and resume a record with this manifest; the outcomes."""
    (path / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    sign(path)
    before = sorted(path.rglob("*"))
    outcomes = []
    for job in (
        lambda: look_at(path),
        lambda: compare(path, other),
        lambda: wb.Run.resume(path),
    ):
        with watch():
            outcomes.append(outcome(job))
    assert sorted(path.rglob("*")) == before
    return outcomes


# Names that would run code, write or read elsewhere if they were made

ATTACKS = [
    {"is": "verifiers.pool.Worker", "command": ["sh", "-c", "touch pwned"]},
    {"is": "verifiers.pool.Pool", "function": "os:system"},
    {"is": "records.Writer", "path": "elsewhere", "manifest": {"format": 2}},
    {"is": "records.writer.Writer", "path": "elsewhere", "manifest": {"format": 2}},
    {"is": "records.pack", "path": "elsewhere"},
    {"is": "records.locks.RecordLock", "directory": "elsewhere"},
    {"is": "records.trackers.TensorBoard", "path": "elsewhere"},
    {"is": "os.system"},
    {"is": "builtins.eval"},
    {"is": "subprocess.Popen", "args": ["sh"]},
    {"is": "methods.grpo", "n": 2},
    {"is": "advantages.np.load"},
    {"is": "advantages.__class__"},
    {"is": "advantages._scaled"},
    {"is": "labs.tiny"},
    {"is": "scheduler.Learner", "width": 10},
    {"is": "success_rates.outcomes", "config": None},
    {"is": "selectors.dataclass"},
    {"is": "selectors.derive"},
    {"is": "rewards.total"},
    {"is": "objectives.policy_loss"},
    {"is": "selectors."},
    {"is": ".selectors.All"},
    {"is": "..selectors.All"},
    {"is": "selectors.All.select"},
    {"is": "workbench.rules.selectors.All"},
    {"is": 5},
    {"is": None},
    {"is": ["selectors.All"]},
    {"is": {"is": "selectors.All"}},
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack["is"]))
def test_a_description_names_slot_values_and_nothing_else(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for description in (
        attack,
        [attack],
        {"is": "selectors.MaxVariance", "m": attack},
        {"is": "advantages.OfRewards", "function": attack},
        {"is": "allocators.DynamicSampling", "within": {"is": "allocators.Uniform", "n": attack}},
        {"name": [{"deep": [attack]}]},
    ):
        with watch(), pytest.raises(ValueError, match="is not a slot value of this package"):
            rebuild(description)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slot", ["allocator", "curriculum", "replay", "selector", "advantage"])
@pytest.mark.parametrize("attack", ATTACKS[:4], ids=lambda attack: str(attack["is"]))
def test_a_stranger_cannot_run_a_command_or_write(slot, attack, place, records, manifests):
    manifest = copy.deepcopy(manifests[0])
    manifest["method"][slot] = attack
    elsewhere = place.parent / "elsewhere"
    text = json.dumps(manifest).replace("elsewhere", str(elsewhere))
    looks = try_all(place, records / "ar3po", text.replace("touch pwned", f"touch {elsewhere}"))
    assert looks == ["ok", "ok", "ValueError"]
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    "change, named",
    [
        (("problems", "name", "codeio"), "name='codeio'"),
        (("problems", "operators", ["__import__('os').system('sh')"]), "operators"),
        (("held_out", None, {"family": "hub", "verifier": "x"}), "verifier"),
        (("lora", "megatron_core", "antigravity"), "lora='megatron_core'"),
        (("verifier", None, "verifiers.pool.Worker"), "verifier="),
        (("model", None, {"is": "os.system"}), "model="),
        (("trust_remote_code", None, True), "trust_remote_code"),
    ],
    ids=str,
)
def test_a_lab_of_a_model_is_made_of_known_parts_only(change, named, manifests):
    lab = copy.deepcopy(manifests[FIRST_FURTHER - 2]["lab"])
    part, entry, value = change
    lab[part] = value if entry is None else {**lab[part], entry: value}
    with watch(), pytest.raises(ValueError, match=named):
        recorded_lab(lab)


# Malformed manifests, one by one


def changed(manifest, path, value):
    """A manifest with another value at a path of keys."""
    manifest = copy.deepcopy(manifest)
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return manifest


@pytest.mark.parametrize(
    "path, value",
    [
        (["method"], None),
        (["method"], "grpo"),
        (["method", "name"], None),
        (["method", "name"], ""),
        (["method", "name"], "a\nb"),
        (["lab"], []),
        (["lab", "lab"], 7),
        (["seed"], "0"),
        (["seed"], True),
        (["seed"], -1),
        (["seed"], 2**70),
        (["arguments"], None),
        (["versions"], 3),
        (["started"], 3),
        (["held_out"], "x"),
        (["thinned"], True),
        (["format"], "2"),
        (["format"], None),
        (["format"], [2]),
    ],
)
def test_a_manifest_with_a_wrong_entry_is_refused_by_its_name(path, value, place, manifests):
    (place / "manifest.json").write_text(json.dumps(changed(manifests[0], path, value)))
    with pytest.raises(RecordError, match=".".join(path)):
        wb.load(place)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"format": 3, "seed": 0, "method": {"name": "x", "deep": ' + "[" * 500 + "]" * 500 + "}}",
        '{"format": 3, "seed": ' + "9" * 5000 + "}",
        "\ud800",
        "nul",
        "",
    ],
    ids=["lists", "objects", "deep", "digits", "surrogate", "text", "empty"],
)
def test_a_manifest_that_is_hardly_json_is_refused(text, place, records):
    # Beside others it is left out and named.
    assert try_all(place, records / "ar3po", text) == ["RecordError", "ok", "RecordError"]


@pytest.mark.parametrize(
    "path, value",
    [
        (["arguments", "out"], "elsewhere"),
        (["arguments", "lab"], None),
        (["arguments", "trackers"], ["wandb"]),
        (["arguments", "seed"], 3),
        (["arguments", "learning_rate"], "fast"),
        (["arguments", "problems_per_round"], 10**9),
        (["arguments", "problems_per_round"], []),
        (["method", "objective"], None),
        (["method", "reward"], []),
        (["method", "is"], "selectors.All"),
        (["method", "allocator", "n"], 2.5),
        (["method", "selector"], {"is": "selectors.MaxVariance", "m": {"is": "selectors.All"}}),
        (["lab", "levels"], {"a": 1}),
        (["lab", "seed"], None),
        (["lab", "model"], 5),
        (["lab", "held_out"], 10**7),
    ],
    ids=str,
)
def test_a_manifest_that_asks_for_what_cannot_be_is_not_resumed(
    path, value, place, records, manifests
):
    text = json.dumps(changed(manifests[0], path, value))
    looks = try_all(place, records / "ar3po", text)
    assert looks == ["ok", "ok", "ValueError"]


def test_a_mutated_manifest_that_can_be_resumed_is_not_trained_from_its_checkpoint(
    place, manifests
):
    """It passes every check of a single entry, but it is not the run that the checkpoint is of."""
    changes = changed(manifests[0], ["seed"], 5)
    changes["arguments"]["seed"] = 5
    (place / "manifest.json").write_text(json.dumps(changes))
    with pytest.raises(RecordError, match="of another run"):
        list(wb.Run.resume(place).rounds(3, progress=False))


# Any manifest

# Larger ones may be legal, and take long.
INTEGERS = st.integers(-3, 60)
NAMES = st.sampled_from(
    ["is", "name", "lab", "family", "n", "seed", "out", "path", "model", "method", "format"]
)
TEXTS = st.one_of(
    NAMES,
    st.sampled_from([attack["is"] for attack in ATTACKS if isinstance(attack["is"], str)]),
    st.sampled_from(["tiny", "transformers", "unsloth", "chain_sum", "codeio", "hub", "cuda"]),
    st.text(max_size=12),
)
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(-3, 60), TEXTS)
JSON = st.recursive(
    st.one_of(SCALARS, st.sampled_from(ATTACKS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(NAMES, TEXTS), inner, max_size=4),
    ),
    max_leaves=12,
)
FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def places_in(value, path=()):
    """The path of every entry of a manifest."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places_in(inner, (*path, key))


def mutated(manifest, rng, value):
    """A manifest with one entry replaced, removed, added, renamed or exchanged for another."""
    path = rng.choice(list(places_in(manifest)))
    manifest = copy.deepcopy(manifest)
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    key = path[-1]
    how = rng.choice(["replace", "replace", "remove", "add", "rename", "exchange"])
    if how == "replace":
        inner[key] = value
    elif how == "remove":
        del inner[key]
    elif how == "add" and isinstance(inner, dict):
        inner[value if isinstance(value, str) else "is"] = value
    elif how == "rename" and isinstance(inner, dict) and isinstance(value, str):
        inner[value] = inner.pop(key)
    else:
        other = manifest
        for step in rng.choice(list(places_in(manifest))):
            other = other[step]
        inner[key] = copy.deepcopy(other)
    return manifest


def mutated_often(content, seeds, values):
    """One mutation after the other, as long as there is something to mutate."""
    for seed, value in zip(seeds, values):
        content = mutated(content, random.Random(seed), value)
        if not content:
            break
    return content


@pytest.mark.long
@settings(FUZZ, max_examples=100)
@given(value=JSON)
@example(value={})
@example(value={"format": 3, "method": {"name": "x"}, "seed": 0})
def test_any_json_is_a_manifest_or_named(value, place, records):
    assert set(try_all(place, records / "ar3po", json.dumps(value))) <= OUTCOMES


MUTATIONS = given(
    which=st.one_of(
        st.integers(0, FIRST_FURTHER - 1),
        st.integers(FIRST_FURTHER, FIRST_FURTHER + len(MORE_PAPERS) - 1),
    ),
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4),
    values=st.lists(JSON, min_size=4, max_size=4),
)


@pytest.mark.long
@settings(FUZZ, max_examples=50)
@MUTATIONS
def test_any_mutation_of_a_manifest_is_one_or_named(
    which, seeds, values, place, records, manifests
):
    manifest = mutated_often(manifests[which], seeds, values)
    assert set(try_all(place, records / "ar3po", json.dumps(manifest))) <= OUTCOMES


@pytest.mark.long
@settings(FUZZ, max_examples=400)
@MUTATIONS
def test_many_mutations_of_a_manifest_are_one_or_named(
    which, seeds, values, place, records, manifests
):
    manifest = mutated_often(manifests[which], seeds, values)
    assert set(try_all(place, records / "ar3po", json.dumps(manifest))) <= OUTCOMES


OUTCOMES = {"ok", "ValueError", "RecordError"}


# Any grid

GRIDS = sorted(wb.labs.shipped("grids").glob("*.yaml"))
SMALL_GRID = {
    "folder": "records",
    "parameters": {
        "lab": {"name": "tiny", "base": "clean", "pool": 8, "levels": [1], "held_out": 2},
        "rounds": [1, 2],
        "problems_per_round": 2,
        "columns": "none",
        "cost": 3.5,
    },
    "cases": [
        {"label": "grpo", "method": "grpo", "arguments": {"n": 2}},
        {"label": "both", "method": "knapsack", "settings": {"selector": "MaxVariance"}},
    ],
    "seeds": 2,
}


def read_grid(folder, content):
    """Read a grid, and check its first run as a sweep does before it makes any."""
    (folder / "grid.yaml").write_text(json.dumps(content))
    before = sorted(folder.rglob("*"))

    def read():
        cases = grids.read(folder / "grid.yaml", folder / "out")
        for case in cases:
            for path in (case.record, case.logs):
                assert path.resolve().is_relative_to(folder.resolve())
        if cases and cases[0].notebook is None:
            grids._check_runs(cases[:1])

    with watch():
        came_of_it = outcome(read)
    assert sorted(folder.rglob("*")) == before
    return came_of_it


@pytest.fixture
def folder(tmp_path_factory, monkeypatch):
    """A working directory for all examples of a test."""
    path = tmp_path_factory.mktemp("grids")
    monkeypatch.chdir(path)
    # What is loaded at its first use is loaded now.
    assert read_grid(path, SMALL_GRID) == "ok"
    return path


@settings(FUZZ, max_examples=60)
@given(value=JSON)
@example(value={"seeds": ["../../../up"]})
@example(value={"cases": [{"label": ["a"]}, {"label": ["a"]}]})
@example(value={"seeds": 10**12})
def test_any_json_is_a_grid_or_named(value, folder):
    assert read_grid(folder, value) in GRID_OUTCOMES


@settings(FUZZ, max_examples=60)
@given(
    which=st.integers(-2, len(GRIDS) - 1),
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=3),
    values=st.lists(JSON, min_size=3, max_size=3),
)
def test_any_mutation_of_a_grid_is_one_or_named(which, seeds, values, folder):
    content = SMALL_GRID
    if which >= 0:
        _, content = grids.read_content(GRIDS[which])
        # The labs of the papers take a second to make, so these are small ones.
        content = {**content, "folder": "records"}
        content["parameters"] = {**content["parameters"], "lab": SMALL_GRID["parameters"]["lab"]}
    assert read_grid(folder, mutated_often(content, seeds, values)) in GRID_OUTCOMES


GRID_OUTCOMES = {"ok", "ValueError", "FileNotFoundError"}
