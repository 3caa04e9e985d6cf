"""The labs: the shipped one, and any causal LM of one's own, LoRA included."""

import re
from dataclasses import replace

import pytest
from conftest import go

import workbench as wb
from workbench.config import recorded_lab as from_config
from workbench.labs import TransformersConfig, shipped
from workbench.policies import Sampling
from workbench.policies.checks import no_gpu
from workbench.problems import Pool, Problem, arithmetic
from workbench.records import Writer
from workbench.verifiers import Math


def test_the_shipped_model_is_there_and_small():
    files = {p.name: p.stat().st_size for p in shipped("models/tiny").iterdir()}
    assert {
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "README.md",
        "training.csv",
        "accuracy.csv",
    } <= files.keys()
    assert sum(files.values()) < 2_000_000
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


@pytest.mark.parametrize("base", ["early", "clean"])
def test_the_config_of_tiny_has_the_rate_that_it_learns_at(base):
    lab = wb.labs.tiny(64, base=base, levels=(1, 2), held_out=0)
    assert lab.config["learning_rate"] == lab.learning_rate > 0
    assert lab.config["levels"] == [1, 2]


def test_tiny_can_be_made_again_from_its_config():
    lab = wb.labs.tiny(64, levels=(1, 4, 4), held_out=10, learning_rate=1e-3)
    again = from_config(lab.config)
    assert again.config == lab.config
    assert again.problems.problems == lab.problems.problems
    assert not {p.id for p in lab.problems} & {p.id for p in lab.held_out}
    with pytest.raises(ValueError, match="made by code of the caller's own"):
        from_config({"lab": "mine"})


class Other(Math):
    """A verifier of a user's own."""


def another_policy():
    raise AssertionError("a model was loaded")


@pytest.mark.parametrize(
    "part",
    [
        {"verifier": Other(boxed=True)},
        {"verifier": Math(boxed=False)},
        {"sampling": Sampling(max_new_tokens=8)},
        {"make_policy": another_policy},
        {"samples": 3},
        {"optimizer": {"weight_decay": 0.5}},
    ],
    ids=lambda part: next(iter(part)),
)
def test_a_lab_with_another_part_is_another_lab(part, lab, tmp_path):
    """Neither a second start nor `Run.resume` takes it for the first."""
    other = replace(lab, **part)
    method = wb.methods.grpo(n=2)
    assert from_config(lab.config).config == lab.config
    assert other.config is None

    write_manifest(wb.Run(lab, method, out=tmp_path / "first"))
    with pytest.raises(ValueError, match=r"holds another run .*lab\."):
        wb.Run(other, method, out=tmp_path / "first")

    write_manifest(wb.Run(other, method, out=tmp_path / "second"))
    with pytest.raises(ValueError, match=r"code of the caller's own.*resume\(path, lab=\.\.\.\)"):
        wb.Run.resume(tmp_path / "second")
    with pytest.raises(ValueError, match=r"holds another run .*lab\."):
        wb.Run.resume(tmp_path / "second", lab=lab)
    wb.Run.resume(tmp_path / "second", lab=replace(lab, **part))


def write_manifest(run):
    """The manifest that the run's first round would write."""
    Writer(run.path, run.configuration())


def test_two_labs_of_ones_own_are_told_apart_by_their_settings(lab, tmp_path):
    first = replace(lab, verifier=Other(boxed=True))
    write_manifest(wb.Run(first, wb.methods.grpo(n=2), out=tmp_path / "run"))
    for part in (
        {"verifier": Math(boxed=True)},
        {"verifier": Other(boxed=False)},
        {"sampling": Sampling(max_new_tokens=8)},
        {"warm_up": 3},
    ):
        with pytest.raises(ValueError, match=r"holds another run .*lab\."):
            wb.Run(replace(first, **part), wb.methods.grpo(n=2), out=tmp_path / "run")
    wb.Run(replace(first, verifier=Other(boxed=True)), wb.methods.grpo(n=2), out=tmp_path / "run")


def test_rounds_share_prefixes_unless_they_are_asked_not_to():
    """A record of a version without the option is of the lab that shares nothing."""
    sharing = wb.labs.tiny(pool=8, held_out=8)
    apart = wb.labs.tiny(pool=8, held_out=8, share_prefixes=False)
    assert sharing.config["share_prefixes"] is True
    assert "share_prefixes" not in apart.config
    drawn = []
    for lab, shares in ((sharing, True), (apart, False)):
        assert from_config(lab.config).config == lab.config
        policy = from_config(lab.config).policy()
        assert policy.share_prefixes is shares
        drawn.append(policy.generate(lab.problems[:4], [6] * 4, lab.sampling, 0))
    assert drawn[0].text.tolist() == drawn[1].text.tolist()


def test_the_tight_regime_is_the_default_with_shorter_responses():
    lab = wb.labs.tiny(64, held_out=8, samples=2)
    tight = wb.labs.tiny(64, held_out=8, samples=2, regime="tight")
    assert tight.problems.problems == lab.problems.problems
    assert tight.sampling == replace(lab.sampling, max_new_tokens=42)
    again = from_config(tight.config)
    assert again.config == tight.config
    assert again.sampling == tight.sampling
    drawn = tight.policy().generate(tight.problems, [8] * 64, tight.sampling, 0)
    assert 0.05 < drawn.truncated.mean() < 0.15


def test_a_lab_that_is_made_like_another_may_say_so(lab):
    wrapped = replace(lab, verifier=Other(boxed=True)).described(lab.config)
    assert wrapped.config == lab.config
    assert replace(wrapped, name="mine").config is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora", [None, {"r": 4, "target_modules": "all-linear"}], ids=["full", "lora"]
)
@pytest.mark.long
def test_any_causal_lm_trains_and_resumes_from_its_manifest(lora, tmp_path):
    if lora:
        pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    lab = wb.labs.transformers(
        str(shipped("models/tiny")),
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        lora=lora,
        learning_rate=1e-3,
        sampling=Sampling(max_new_tokens=24, stop=("}",)),
        samples=1,
        device="cpu",
    )
    row = go(wb.Run(lab, wb.methods.grpo(4), out=tmp_path, problems_per_round=4), 1)[0]
    assert row["steps"] == 1
    again = wb.Run.resume(tmp_path)
    assert again.lab.config == lab.config
    assert again.lab.sampling == lab.sampling
    assert again.lab.problems.problems == lab.problems.problems
    assert len(go(again, 2)) == 1


def test_held_out_problems_that_are_trained_on_are_named(lab):
    shared = [replace(each, id=f"own/{each.id}") for each in lab.problems[:3]]
    with pytest.warns(UserWarning, match="^held_out: 3 of its "):
        replace(lab, held_out=Pool([*lab.held_out, *shared]))


@pytest.mark.slow
def test_a_lab_of_ones_own_problems_has_to_be_passed(tmp_path):
    own = Pool([Problem(str(i), f"{i}+1=", str(i + 1)) for i in range(4)])
    lab = wb.labs.transformers(
        str(shipped("models/tiny")), own, sampling=Sampling(max_new_tokens=8), device="cpu"
    )
    assert lab.config is None
    go(wb.Run(lab, wb.methods.grpo(2), out=tmp_path, problems_per_round=2), 1)
    with pytest.raises(ValueError, match="made by code of the caller's own"):
        wb.Run.resume(tmp_path)
    assert len(go(wb.Run.resume(tmp_path, lab=lab), 2)) == 1


@pytest.mark.skipif(no_gpu() is None, reason="for machines without a GPU")
def test_without_a_gpu_one_line_says_so():
    problems = arithmetic(4)
    with pytest.raises(
        ValueError, match=r"labs\.unsloth: .*NVIDIA GPU is needed.*; labs\.transformers"
    ):
        wb.labs.unsloth("nobody/none", problems)
    with pytest.raises(ValueError, match=r"engine='vllm': .*NVIDIA GPU is needed"):
        wb.labs.transformers("nobody/none", problems, engine="vllm")


@pytest.mark.parametrize(
    "make, options, named",
    [
        (wb.labs.tiny, {"levels": (0,)}, "levels="),
        (wb.labs.tiny, {"levels": ()}, "levels="),
        (wb.labs.tiny, {"pool": 0}, "pool=0"),
        (wb.labs.tiny, {"levels": (1,)}, "levels="),
        (wb.labs.tiny, {"levels": (1,), "pool": 64}, "levels="),
        (wb.labs.tiny, {"threads": 1025}, "threads="),
        (wb.labs.tiny, {"base": "clean", "regime": "ar3po"}, "regime="),
        (wb.labs.tiny, {"share_prefixes": 1}, "share_prefixes="),
        (wb.labs.tiny, {"model": 3}, "model="),
        (wb.labs.transformers, {"engine": "sglang"}, "engine="),
        (wb.labs.transformers, {"template": "x"}, "template="),
        (wb.labs.transformers, {"dtype": "bf16"}, "dtype="),
        (wb.labs.transformers, {"dtype": "bfloat16"}, "dtype="),
        (wb.labs.transformers, {"engine": "vllm", "max_length": 100}, "max_length="),
        (wb.labs.transformers, {"rows": 0}, "rows="),
        (wb.labs.transformers, {"chunk": 0}, "chunk="),
        (wb.labs.unsloth, {"chunk": 0}, "chunk="),
        (wb.labs.transformers, {"hand_over": "file"}, "hand_over="),
        (wb.labs.transformers, {"float32_head": 1}, "float32_head="),
        (wb.labs.unsloth, {"rows": 0}, "rows="),
        (wb.labs.unsloth, {"template": "no place"}, "template="),
        (wb.labs.unsloth, {"lora_rank": 0}, "lora_rank="),
        (wb.labs.unsloth, {"max_length": 512}, "max_length="),
        (wb.labs.unsloth, {"gpu_memory_utilization": 1.0}, "gpu_memory_utilization="),
        (wb.labs.unsloth, {"gpu_memory_utilization": 0}, "gpu_memory_utilization="),
        (wb.labs.unsloth, {"optimizer_bits": 16}, "optimizer_bits="),
        (wb.labs.unsloth, {"warm_up": -1}, "warm_up="),
        (wb.labs.unsloth, {"device": "cpu"}, "device="),
        (wb.labs.unsloth, {"device": "cpu", "optimizer_bits": 8}, "device="),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_bad_arguments(make, options, named):
    model = () if make is wb.labs.tiny else ("nobody/none", arithmetic(4))
    with pytest.raises(ValueError, match=f"^{named}"):
        make(*model, **options)


REFUSED_ADAPTERS = [
    {"modules_to_save": ["lm_head"]},
    {"use_dora": True},
    {"lora_bias": True},
    {"trainable_token_indices": [1]},
]
MERGED_ADAPTERS = [
    {"bias": "all"},
    {"rank_pattern": {"q_proj": 8}},
    {"alpha_pattern": {"q_proj": 8}},
    {"init_lora_weights": "pissa"},
    {"r": 1024},
]


@pytest.mark.parametrize("option", [*REFUSED_ADAPTERS, *MERGED_ADAPTERS], ids=str)
def test_an_adapter_that_vllm_cannot_have_is_refused_before_anything_is_loaded(option):
    [name] = option
    lora = {"r": 8, "target_modules": "all-linear", **option}
    vllm = {"engine": "vllm", "device": "cpu", "lora": lora}
    with pytest.raises(ValueError, match=re.escape(f"lora[{name!r}]")):
        TransformersConfig("nobody/none", **vllm)
    TransformersConfig("nobody/none", lora=lora)
    if option in MERGED_ADAPTERS:
        TransformersConfig("nobody/none", hand_over="merged", **vllm)
    else:
        with pytest.raises(ValueError, match=re.escape(f"lora[{name!r}]")):
            TransformersConfig("nobody/none", hand_over="merged", **vllm)


def test_what_switches_an_option_of_an_adapter_off_is_no_obstacle():
    off = {"modules_to_save": None, "use_dora": False, "bias": "none", "rank_pattern": {}}
    lora = {"r": 8, "target_modules": "all-linear", "use_rslora": True, **off}
    TransformersConfig("nobody/none", engine="vllm", lora=lora)
    head = {"r": 8, "target_modules": ["lm_head"]}
    with pytest.raises(ValueError, match="target_modules"):
        TransformersConfig("nobody/none", engine="vllm", hand_over="merged", lora=head)


def test_rows_and_the_precision_of_the_head_reach_the_policy():
    model = str(shipped("models/tiny"))
    lab = wb.labs.transformers(
        model,
        arithmetic(4),
        sampling=Sampling(max_new_tokens=32),
        device="cpu",
        rows=7,
        float32_head=True,
    )
    policy = lab.policy()
    assert (policy.rows, policy.float32_head) == (7, True)
    assert from_config(lab.config).config == lab.config
    # Records of earlier versions say nothing of these options.
    usual = wb.labs.transformers(model, arithmetic(4), device="cpu")
    assert not {"rows", "chunk", "float32_head", "hand_over"} & usual.config.keys()


def test_a_lab_and_a_policy_print_what_a_person_would_ask(lab, policy):
    assert "Pool(32 problems" in repr(lab) and "12 held-out" in repr(lab)
    assert "Stress" not in repr(lab) and "Stress(" not in lab._repr_html_()
    stressed = lab.stressed(lag=2)
    assert "Stress(lag=2" in repr(stressed) and "Stress(lag=2" in stressed._repr_html_()
    assert re.fullmatch(r"TransformersPolicy\('.*tiny', [\d,]+ parameters, on cpu\)", repr(policy))
