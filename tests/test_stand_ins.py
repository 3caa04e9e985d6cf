"""How vLLM and Unsloth are called, with stand-ins that record the arguments.

What is checked here is our side of the call. That the real packages take it so is seen where they
run: `test_vllm.py` and `test_unsloth.py` on a CPU, `test_gpu.py` on a GPU.
"""

import json
import os
import sys
import weakref
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import Gradients, go, hand_made, same_record, same_weights, small_lab, tiny_policy
from contract import LORA, PROMPTS, SAMPLING, shaken

import workbench as wb
from workbench.grpo import grpo_step
from workbench.labs import shipped
from workbench.policies import END, GO_ON, Plan, Sampling, checks
from workbench.problems import arithmetic
from workbench.utils.failures import import_apart

MODEL = shipped("models/tiny")


def module(name, **contents):
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    for key, value in contents.items():
        setattr(made, key, value)
    return made


class RecordedLLM:
    """Stands in for vllm.LLM: it draws by the tiny model, and keeps what it was asked."""

    made: ClassVar[list] = []
    interrupt = False

    def __init__(self, path, **options):
        self.options = options
        self.events = []
        self.adapters = []
        self.requests = {}
        self.policy = tiny_policy()
        self.llm_engine = SimpleNamespace(
            output_processor=SimpleNamespace(request_states=self.requests),
            abort_request=self.abort,
            remove_lora=lambda number: None,
            is_sleeping=lambda: self.events[-1:] == ["sleep 1"],
            engine_core=SimpleNamespace(shutdown=lambda: self.events.append("shutdown")),
        )
        self.model_config = SimpleNamespace(
            max_model_len=options.get("max_model_len") or 128,
            dtype=torch.float32 if options.get("dtype") == "float32" else torch.bfloat16,
            logprobs_mode=options.get("logprobs_mode"),
        )
        self.noise = 0.0
        RecordedLLM.made.append(self)

    def collective_rpc(self, name, kwargs):
        self.events.append(name)
        self.handed = dict(kwargs["weights_iterator"])
        own = self.policy.state_dict()
        self.policy.load_state_dict({key: self.handed.get(key, own[key]) for key in own})

    def abort(self, names, internal):
        assert internal
        for name in names:
            del self.requests[name]

    def reset_prefix_cache(self):
        self.events.append("reset")
        return not self.requests

    def sleep(self, level):
        self.events.append(f"sleep {level}")

    def wake_up(self):
        self.events.append("wake")

    def generate(self, inputs, params, use_tqdm, lora_request):
        self.events.append("generate")
        assert not self.requests
        if self.interrupt:
            self.interrupt = False
            self.requests.update(dict.fromkeys(range(len(inputs))))
            raise KeyboardInterrupt
        assert all(each.flat_logprobs for each in params)
        bias = params[0].logit_bias or {}
        assert set(bias.values()) <= {-100.0} and len(bias) <= 1024
        self.policy.never = torch.tensor(sorted(bias)) if bias else None
        if lora_request is not None:
            self.adapters.append(adapter_of(lora_request))
        texts = [self.policy.tokenizer.decode(each["prompt_token_ids"]) for each in inputs]
        seeds = [each.seed for each in params]
        rooms = [each.max_tokens for each in params]
        margins = [[] for _ in texts]

        def watch(growing):
            if params[0].logprobs:
                for row, margin in zip(growing.rows, growing.margin()):
                    margins[row].append(margin)
            full = growing.step >= np.take(rooms, growing.rows)
            return np.where(full, END, GO_ON)

        sampling = Sampling(temperature=params[0].temperature, max_new_tokens=max(rooms))
        drawn = self.policy.generate(texts, [1] * len(texts), sampling, seeds, Plan(stop=watch))
        ends = [drawn.response[row][-1] in self.policy.end_ids for row in range(len(drawn))]
        drawn = drawn.assign(truncated=~np.array(ends, dtype=bool))
        return [
            self.output(drawn, row, margins[row] if params[0].logprobs else None)
            for row in range(len(drawn))
        ]

    def output(self, drawn, row, margins=None):
        tokens = drawn.response[row].tolist()
        # Two numbers a token: that of the one drawn, and then that of the most likely one; and a
        # third where the two most likely are asked for.
        numbers = [[float(chance) + self.noise, 0.0] for chance in drawn.old_logprobs[row]]
        if margins is not None:
            # The course is not asked about a token that ends a response.
            margins = [*margins, 0.0][: len(numbers)]
            pairs = [[np.log((1 + gap) / 2), np.log((1 - gap) / 2)] for gap in margins]
            numbers = [[own, *pair] for (own, _), pair in zip(numbers, pairs)]
        starts = np.cumsum([0, *map(len, numbers)])[:-1].tolist()
        chances = SimpleNamespace(
            logprobs=[n for each in numbers for n in each], start_indices=starts
        )
        reason = "length" if drawn.truncated[row] else "stop"
        answer = SimpleNamespace(token_ids=tokens, logprobs=chances, finish_reason=reason)
        return SimpleNamespace(outputs=[answer])


def adapter_of(request):
    from safetensors.torch import load_file

    return load_file(Path(request.lora_path) / "adapter_model.safetensors")


@pytest.fixture
def vllm(monkeypatch):
    """The stand-in for the package."""
    from workbench.policies.vllm import _LATEST

    def request(name, number, path):
        return SimpleNamespace(lora_int_id=number, lora_path=path)

    monkeypatch.setattr("workbench.policies.vllm.check_vllm", lambda device: None)
    monkeypatch.setattr("workbench.labs.checks.check_vllm", lambda device: None)
    stand_in = module("vllm", LLM=RecordedLLM, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.setitem(sys.modules, "vllm.lora", module("vllm.lora"))
    monkeypatch.setitem(
        sys.modules, "vllm.lora.request", module("vllm.lora.request", LoRARequest=request)
    )
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    RecordedLLM.made.clear()
    yield RecordedLLM.made
    RecordedLLM.made.clear()
    _LATEST.clear()


def test_what_vllm_is_asked_for(vllm):
    tiny_policy(vllm={})
    [llm] = vllm
    assert "max_num_seqs" not in llm.options  # vLLM chooses it by the memory of the GPU
    assert "hf_overrides" not in llm.options
    assert llm.options["logprobs_mode"] == "processed_logprobs"
    assert "enable_sleep_mode" not in llm.options


def test_on_a_large_gpu_graphs_are_recorded_up_to_the_batch_that_is_sent(vllm, monkeypatch):
    from workbench.policies.vllm import Engine

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    graphs = []
    for name, size in (("NVIDIA H100", 80), ("NVIDIA A100", 80), ("NVIDIA L40S", 48)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda size=size: (0, size * 2**30))
        Engine.make(MODEL, device="cuda")
        graphs.append(vllm[-1].options.get("max_cudagraph_capture_size"))
    assert graphs == [1024, None, None]


@pytest.mark.slow
def test_ids_that_stand_for_no_token_are_left_out_of_what_vllm_draws(vllm, monkeypatch):
    policy = tiny_policy(vllm={})
    usual = policy.generate(PROMPTS, [2] * 6, SAMPLING, 1).response.values
    seen = np.bincount(usual)
    seen[policy.end_ids] = 0
    token = int(seen.argmax())
    monkeypatch.setattr(policy, "never", torch.tensor([token]))
    for plan in (None, Plan(stop=lambda growing: np.full(len(growing.rows), GO_ON))):
        drawn = policy.generate(PROMPTS, [2] * 6, SAMPLING, 1, plan).response.values
        assert len(drawn) and token not in drawn


def test_more_ids_without_a_token_than_vllm_leaves_out_are_refused(vllm, tmp_path):
    policy = tiny_policy(vllm={})
    policy.model.resize_token_embeddings(2000)
    with pytest.raises(ValueError, match=r"model: 1934 rows of its embedding .* 1024 at most"):
        type(policy)(policy.model, policy.tokenizer, engine=policy.engine)


@pytest.mark.parametrize("vllm_options", [{"sleeps": True}, {}])
def test_an_interrupted_engine_goes_on(vllm, vllm_options):
    policy = tiny_policy(vllm=vllm_options)
    [llm] = vllm
    before = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    llm.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    assert llm.requests, "they stay in vLLM"
    after = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    assert not llm.requests
    assert list(after.text) == list(before.text)


@pytest.mark.parametrize("temperature", [0, 0.01, 2.0])
def test_temperatures_that_vllm_takes(vllm, temperature):
    options = {"engine": "vllm", "device": "cpu", "max_length": 64}
    sampling = Sampling(temperature=temperature, max_new_tokens=32)
    wb.labs.transformers(str(MODEL), arithmetic(4), sampling=sampling, **options)


@pytest.mark.parametrize("temperature", [1e-6, 0.005, 2.01, 5.0])
def test_temperatures_that_vllm_does_not_take_are_refused_before_anything_is_loaded(temperature):
    sampling = Sampling(temperature=temperature, max_new_tokens=32)
    options = {"engine": "vllm", "device": "cpu", "max_length": 64, "sampling": sampling}
    with pytest.raises(ValueError, match=rf"^sampling.temperature={temperature:g}: vLLM"):
        wb.labs.transformers(str(MODEL), arithmetic(4), **options)
    options.pop("engine")
    wb.labs.transformers(str(MODEL), arithmetic(4), **options)


KEEPING = """
try:
    import a_package_that_is_not_there
except ImportError as error:
    kept = error
name = 3
"""


def test_a_module_that_keeps_an_error_does_not_keep_who_imported_it(tmp_path, monkeypatch):
    (tmp_path / "keeping_an_error.py").write_text(KEEPING)
    monkeypatch.syspath_prepend(tmp_path)

    def caller():
        held = wb.labs.Sampling()
        assert import_apart("keeping_an_error", "name") == 3
        return weakref.ref(held)

    assert caller()() is None
    with pytest.raises(ModuleNotFoundError):
        import_apart("a_package_that_is_not_there", "name")


def test_what_a_module_sets_of_torchs_compiler_holds_after_its_import(tmp_path, monkeypatch):
    """Since torch 2.12 such a setting holds in one thread alone."""
    import torch._dynamo

    source = "import torch._dynamo\ntorch._dynamo.config.recompile_limit = 77\nname = 3\n"
    (tmp_path / "setting_a_limit.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    assert import_apart("setting_a_limit", "name") == 3
    assert torch._dynamo.config.recompile_limit == 77


@pytest.mark.slow
def test_an_engine_that_sleeps_wakes_before_it_is_given_weights(vllm):
    policy = tiny_policy(vllm={"sleeps": True})
    [llm] = vllm
    assert llm.options["enable_sleep_mode"]
    for seed in range(2):
        policy.generate(PROMPTS, [1] * 6, SAMPLING, seed)
    once = ["reload_weights", "reset", "generate", "sleep 1"]
    assert llm.events == [*once, "wake", *once]


@pytest.mark.slow
def test_an_engine_can_sleep_after_unsloth_has_been_imported(vllm, monkeypatch):
    """Unsloth sets the newer name of the variable, and vLLM looks for the older one."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    tiny_policy(vllm={})
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
    tiny_policy(vllm={"sleeps": True})
    assert "expandable_segments:True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]


@pytest.mark.slow
def test_an_engine_ends_with_its_last_policy_or_when_it_is_stopped(vllm):
    first = tiny_policy(vllm={"max_length": 40})
    assert tiny_policy(vllm={"max_length": 40}).engine is first.engine
    with pytest.raises(ValueError, match=r"in use .*engine\.stop\(\)"):
        tiny_policy(vllm={"max_length": 50})
    assert [llm.events for llm in vllm] == [[]]
    del first
    second = tiny_policy(vllm={"max_length": 50})
    assert [llm.events for llm in vllm] == [["shutdown"], []]
    engine = second.engine
    engine.stop()
    engine.stop()
    assert vllm[1].events == ["shutdown"]
    with pytest.raises(RuntimeError, match="stopped"):
        second.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    assert tiny_policy(vllm={"max_length": 50}).engine is not engine


@pytest.mark.slow
def test_an_engine_that_sleeps_wakes_before_it_is_stopped(vllm):
    policy = tiny_policy(vllm={"sleeps": True})
    policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    policy.engine.stop()
    assert vllm[0].events[-2:] == ["wake", "shutdown"]
    tiny_policy(vllm={"sleeps": True, "max_length": 50})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_handed_over_merged_and_the_model_stays_as_it_is(vllm, dtype):
    pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    policy = shaken(tiny_policy(lora=LORA, dtype=dtype, vllm={"merges": True}))
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    policy.generate(PROMPTS, [1] * 6, SAMPLING, 1)
    [llm] = vllm
    assert "enable_lora" not in llm.options
    assert llm.adapters == []
    assert llm.events == ["reload_weights", "reset", "generate", "generate"]
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name])
    handed = dict(llm.handed)
    expected = policy.model.merge_and_unload()
    assert handed.keys() == {name for name, _ in expected.named_parameters()}
    for name, weight in expected.named_parameters():
        assert handed[name].dtype == torch.float32  # vLLM's on a CPU
        assert torch.allclose(handed[name], weight.float(), rtol=1e-2, atol=1e-3)
    name = "model.layers.0.mlp.up_proj.weight"
    plain = tiny_policy(dtype=dtype).model.get_parameter(name)
    assert not torch.equal(handed[name], plain.float())


def test_a_head_in_float32_is_asked_of_vllm_and_of_the_trainer(vllm):
    policy = tiny_policy(vllm={}, float32_head=True)
    assert policy.float32_head
    assert vllm[0].options["hf_overrides"] == {"head_dtype": "float32"}


@pytest.mark.slow
def test_an_adapter_is_handed_over_in_the_precision_of_the_sampler(vllm, monkeypatch):
    pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    policy = shaken(tiny_policy(lora=LORA, vllm={}))
    policy.engine._dtype = torch.bfloat16  # as on a GPU
    policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    [llm] = vllm
    handed = llm.adapters[0]
    own = policy.state_dict()
    assert len(handed) == len(own)
    for name, weight in own.items():
        sent = handed[name.replace(".default", "")]
        assert sent.dtype == torch.bfloat16
        assert torch.equal(sent, weight.to(torch.bfloat16))


def test_the_smaller_of_two_limits_of_length_counts(vllm):
    policy = tiny_policy(vllm={"max_length": 40}, max_length=100)
    assert policy.max_length == 40


class Counted:
    """Counts the rows of every forward pass of a policy's trainer."""

    def __init__(self, policy):
        self.rows = {"rescored": 0, "step": 0}
        logprobs = policy.logprobs

        def counted(rollouts, *arguments, **options):
            self.rows["step" if torch.is_grad_enabled() else "rescored"] += len(rollouts)
            return logprobs(rollouts, *arguments, **options)

        policy.logprobs = counted


def run_by_vllm(tmp_path, method, rounds=2, noise=0.0, chunk=32, **options):
    """A run whose sampler is the stand-in: its rows, its record and the counted passes."""
    lab = wb.labs.transformers(
        str(MODEL),
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        samples=1,
        device="cpu",
        engine="vllm",
        learning_rate=1e-3,
        sampling=Sampling(max_new_tokens=24),
        chunk=chunk,
    )
    counted = []
    make_policy = lab.make_policy

    def watched():
        policy = make_policy()
        policy.engine.llm.noise = noise
        counted.append(Counted(policy))
        return policy

    object.__setattr__(lab, "make_policy", watched)
    rows = go(wb.Run(lab, method, out=tmp_path, problems_per_round=4, **options), rounds)
    return rows, wb.load(tmp_path), counted[0].rows


@pytest.mark.slow
def test_nothing_is_rescored_for_an_evaluation_or_a_single_step(vllm, tmp_path):
    rows, record, passes = run_by_vllm(tmp_path, wb.methods.pods(8, 4), evaluate_every=1)
    assert passes["rescored"] == 0
    assert passes["step"] > 0
    for row in rows:
        assert row["tokens_rescored"] == row["flops_rescore"] == 0
        assert row["steps"] == 1
        assert row["sampler_gap"] < 1e-3 or np.isnan(row["sampler_gap"])
    rollouts = record.rollouts()
    assert rollouts["sampler_gap"].notna().sum() == rollouts["trained"].sum()


@pytest.mark.slow
def test_of_several_steps_only_the_kept_rows_of_the_later_ones_are_rescored(vllm, tmp_path):
    method = wb.methods.pods(8, 4)
    rows, _, passes = run_by_vllm(tmp_path, method, rounds=1, mini_batches=2)
    assert rows[0]["rollouts"] == 32
    assert passes["rescored"] == 8  # of 16 kept rows those of the second step
    assert rows[0]["tokens_rescored"] > 0
    assert rows[0]["seconds_rescore"] > 0


@pytest.mark.slow
def test_slots_that_need_entropies_have_everything_rescored(vllm, tmp_path):
    rows, _, passes = run_by_vllm(tmp_path, wb.methods.rl_zvp(), rounds=1)
    assert passes["rescored"] == rows[0]["rollouts"] == 32
    assert np.isfinite(rows[0]["entropy"])


@pytest.mark.long
@pytest.mark.slow
def test_a_gap_is_corrected_by_default(vllm, tmp_path):
    """Responses that the trainer finds 3 times as likely as the sampler, or more, are left out."""
    rows, _, _ = run_by_vllm(tmp_path / "a", wb.methods.grpo(), rounds=1, noise=-1.0)
    assert rows[0]["sampler_above"] == 1.0
    assert rows[0]["gradient_norm"] == 0
    off = wb.methods.grpo().but(objective=wb.objectives.Objective(sampler_correction="off"))
    rows, _, _ = run_by_vllm(tmp_path / "b", off, rounds=1, noise=-1.0)
    assert rows[0]["gradient_norm"] > 0


@pytest.mark.slow
def test_the_gap_of_a_sampler_and_the_share_above_the_cap_are_recorded(vllm, tmp_path):
    """Every token is exp(-1) times as likely for the sampler as for the trainer."""
    method = wb.methods.grpo().but(
        objective=wb.objectives.Objective(sampler_correction="truncate", sampler_cap=2.0)
    )
    rows, _, _ = run_by_vllm(tmp_path, method, rounds=1, noise=-1.0)
    assert rows[0]["sampler_gap"] == pytest.approx(1.0, abs=1e-3)
    assert rows[0]["sampler_above"] == 1.0


def watched(read):
    """A plan whose course reads one of the signals and stops nothing."""

    def stop(growing):
        read(growing)
        return np.zeros(len(growing.rows))

    return Plan(stop=stop)


def test_an_engine_that_a_course_interrupts_sleeps_once(vllm):
    policy = tiny_policy(vllm={"sleeps": True})
    policy.chunk = 5
    [llm] = vllm
    short = replace(SAMPLING, max_new_tokens=12)
    drawn = policy.generate(PROMPTS, [1] * 6, short, 0, watched(lambda growing: None))
    assert llm.events == ["reload_weights", "reset", *["generate"] * 3, "sleep 1"]
    # The last chunk is as long as there is room.
    assert drawn.truncated.any() and drawn.lengths.max() == 12
    assert not drawn["lost"].any()
    # One chunk for all is the call without a course.
    policy.chunk = SAMPLING.max_new_tokens
    once = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0, watched(lambda growing: None))
    plain = policy.generate(PROMPTS, [1] * 6, SAMPLING, 0)
    assert once.text.tolist() == plain.text.tolist()


@pytest.mark.parametrize(
    "read, sampling, reason",
    [
        ("states", SAMPLING, "course: it reads hidden states"),
        (
            "margin",
            replace(SAMPLING, temperature=0.7),
            "course: it reads the margins.* temperature 1",
        ),
        ("margin", replace(SAMPLING, top_p=0.7), "course: it reads the margins.* without top_p"),
    ],
)
def test_what_an_engine_does_not_tell_a_course_is_one_error(vllm, read, sampling, reason):
    policy = tiny_policy(vllm={})
    with pytest.raises(ValueError, match=reason):
        policy.generate(PROMPTS, [1] * 6, sampling, 0, watched(lambda each: getattr(each, read)()))


def test_a_chunk_without_a_token_is_refused(vllm):
    with pytest.raises(ValueError, match="chunk=0"):
        tiny_policy(vllm={}, chunk=0)


@pytest.mark.long
def test_responses_by_vllm_are_stopped_and_their_lost_tokens_are_paid_for(vllm, tmp_path):
    """DUET with an early deadline, and the same run again after an interruption."""
    method = wb.methods.duet(4, limit=20, low=2)
    early = replace(method.course, start=0, every=2, shares=(0.05, 0.1), grace=4, gap=1)
    method = method.but(course=early)
    rows, record, _ = run_by_vllm(tmp_path / "whole", method, rounds=3, chunk=5, checkpoint_every=1)
    run_by_vllm(tmp_path / "parts", method, rounds=1, chunk=5, checkpoint_every=1)
    go(wb.Run.resume(tmp_path / "parts"), 3)
    same_record(record, wb.load(tmp_path / "parts"))
    rollouts = record.rollouts()
    assert (rollouts["status"] == "stopped").any()
    for row in rows:
        of_round = rollouts[rollouts["round"] == row["round"]]
        lost = of_round["lost"].sum()
        stopped = of_round.loc[of_round["status"] == "stopped", "length"].sum()
        assert row["tokens_stopped"] == stopped + lost
        assert row["tokens_sampled"] > of_round["length"].sum() + lost
    assert rollouts["lost"].sum() > 0


# Unsloth


class Packed(torch.nn.Linear):
    """Stands in for a layer in 4 bits: a tensor of half the entries, which knows its true shape."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features, bias=False)
        self.register_buffer("unpacked", layer.weight.detach(), persistent=False)
        shape = layer.weight.shape
        halved = torch.zeros(shape.numel() // 2, 1, dtype=torch.uint8)
        self.weight = torch.nn.Parameter(halved, requires_grad=False)
        self.weight.quant_state = SimpleNamespace(shape=shape)

    def forward(self, states):
        return torch.nn.functional.linear(states, self.unpacked)


class RecordedUnsloth:
    """Stands in for unsloth.FastLanguageModel, on plain transformers and peft."""

    calls: ClassVar[list] = []

    @staticmethod
    def from_pretrained(path, **options):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        RecordedUnsloth.calls.append((path, options))
        model = AutoModelForCausalLM.from_pretrained(path)
        if options.get("fast_inference"):
            length = options["max_seq_length"] // 2
            model.vllm_engine = RecordedLLM(path, max_model_len=length)
        if options["load_in_4bit"]:
            for layer in model.model.layers:
                layer.mlp.down_proj = Packed(layer.mlp.down_proj)
        return model, AutoTokenizer.from_pretrained(path)

    @staticmethod
    def get_peft_model(model, *, use_gradient_checkpointing, random_state, **options):
        import peft

        engine = getattr(model, "vllm_engine", None)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
        model.vllm_engine = engine
        return model

    @staticmethod
    def for_inference(model):
        model.eval()

    @staticmethod
    def for_training(model, use_gradient_checkpointing):
        model.train()


@pytest.fixture
def unsloth(monkeypatch, vllm):
    """The stand-in for the package, and our module on it."""
    pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    monkeypatch.delitem(sys.modules, "workbench.policies.unsloth", raising=False)
    monkeypatch.setitem(
        sys.modules, "unsloth", module("unsloth", FastLanguageModel=RecordedUnsloth)
    )
    monkeypatch.setitem(sys.modules, "unsloth_zoo", module("unsloth_zoo"))
    RecordedUnsloth.calls.clear()
    import workbench.policies.unsloth as ours

    yield ours.UnslothPolicy
    sys.modules.pop("workbench.policies.unsloth", None)


def test_unsloth_loads_the_very_model_that_is_named(unsloth):
    policy = unsloth.from_pretrained(MODEL, lora_rank=4, device="cpu", max_length=120)
    [(path, options)] = RecordedUnsloth.calls
    assert path == str(MODEL)
    assert options["use_exact_model_name"]
    assert options["max_num_seqs"] == 512  # of a small GPU
    assert options["max_logprobs"] == 2  # for the margins of courses
    assert policy.max_length == 60  # what the engine was lowered to


def test_where_unsloth_goes_on_without_vllm_the_way_out_is_named(unsloth, monkeypatch):
    plain = RecordedUnsloth.from_pretrained

    def without_vllm(path, **options):
        return plain(path, **{**options, "fast_inference": False})

    monkeypatch.setattr(RecordedUnsloth, "from_pretrained", staticmethod(without_vllm))
    with pytest.raises(RuntimeError, match=r"loaded the model without vLLM.*fast_inference=False"):
        unsloth.from_pretrained(MODEL, lora_rank=4, device="cpu", max_length=120)


def test_unsloth_loads_a_revision_from_its_snapshot(unsloth, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(name, revision):
        asked.append((name, revision))
        return str(MODEL)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    loaded = checks.load_configuration(MODEL, None, "{prompt}")
    monkeypatch.setattr(checks, "load_configuration", lambda *_: loaded)
    policy = unsloth.from_pretrained(
        "owner/name", revision="v2", lora_rank=4, device="cpu", max_length=64, fast_inference=False
    )
    assert asked == [("owner/name", "v2")]
    assert RecordedUnsloth.calls[0][0] == str(MODEL)
    assert policy.name == "owner/name"


def test_a_directory_has_no_revision():
    with pytest.raises(ValueError, match="is a local directory and has no revisions"):
        checks.local_snapshot(MODEL, "v2")


def test_after_sampling_by_unsloth_nothing_runs_in_training_mode(unsloth):
    policy = unsloth.from_pretrained(
        MODEL, lora_rank=4, device="cpu", max_length=128, fast_inference=False
    )
    drawn = policy.generate(PROMPTS, [2] * 6, SAMPLING, 0)
    assert not policy.model.training
    rescored = policy.rescored(drawn)
    assert not policy.model.training
    gap = np.abs(rescored.old_logprobs.values - drawn.old_logprobs.values)
    assert gap.max() < 1e-4
    assert policy.layout == "padded"


def attend_within_rows(policy, keeps_apart=True):
    """Stands in for Unsloth's kernels: a plain model given the mask that `packed_seq_lengths` mean.

    keeps_apart: without it the lengths are passed over, as by a kernel that does not know them.
    """

    def states(ids, position_ids=None, packed_seq_lengths=None):
        if packed_seq_lengths is None:
            return policy.decoder(input_ids=ids, use_cache=False).last_hidden_state
        assert packed_seq_lengths.dtype == torch.int32
        assert packed_seq_lengths.sum() == ids.shape[1]
        row = torch.repeat_interleave(torch.arange(len(packed_seq_lengths)), packed_seq_lengths)
        allowed = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        if keeps_apart:
            allowed &= row[:, None] == row
        return policy.decoder(
            input_ids=ids,
            position_ids=position_ids,
            attention_mask=allowed[None, None],
            use_cache=False,
        ).last_hidden_state

    policy._states = states


def test_rows_end_to_end_give_unsloth_what_padded_rows_give(unsloth):
    """The same log-probabilities, and the same gradient of a step."""
    policy = shaken(
        unsloth.from_pretrained(
            MODEL, lora_rank=4, device="cpu", max_length=128, fast_inference=False
        )
    )
    assert policy.layout == "padded"  # its CPU backend has other kernels
    rollouts = policy.generate(PROMPTS, [1, 3, 2, 1, 0, 2], SAMPLING, 0)
    attend_within_rows(policy)
    assert policy._joins_alike()
    results = []
    for layout in ("padded", "joined"):
        policy.layout = layout
        policy.model.zero_grad()
        logprobs = policy.logprobs(rollouts)
        logprobs.sum().backward()
        gradient = torch.cat([each.grad.flatten() for each in policy.parameters()])
        results.append((logprobs.detach(), gradient))
    padded, joined = results
    assert torch.allclose(joined[0], padded[0], atol=1e-4)
    assert torch.allclose(joined[1], padded[1], atol=1e-4 * padded[1].abs().max().item())


def test_micro_batches_of_rows_end_to_end_are_filled_with_tokens_and_no_padding(unsloth):
    """Within the same limit fewer passes than padded rows need, and the same gradient."""
    policy = shaken(
        unsloth.from_pretrained(
            MODEL, lora_rank=4, device="cpu", max_length=128, fast_inference=False
        )
    )
    # With the prompts of 5 tokens: 6, 7, 9, 13, 17, 25, 35 and 45, together 157.
    rollouts = hand_made([1, 0] * 4, ["a"] * 8, lengths=[1, 2, 4, 8, 12, 20, 30, 40])
    advantages = np.array([1.0, -1.0] * 4)
    attend_within_rows(policy)
    states = policy._states
    sizes = []

    def counted(ids, **rows):
        sizes.append(ids.numel())
        return states(ids, **rows)

    policy._states = counted
    gradients = []
    passes = {}
    for layout in ("padded", "joined"):
        policy.layout = layout
        keeper = Gradients(policy)
        sizes.clear()
        grpo_step(policy, keeper, rollouts, advantages, micro_tokens=80, max_grad_norm=1e9)
        assert max(sizes) <= 80
        passes[layout] = len(sizes)
        gradients.append(keeper.seen)
    padded, joined = gradients
    assert passes == {"padded": 4, "joined": 2}
    assert (joined - padded).norm() < 1e-4 * padded.norm()


def test_kernels_that_mix_rows_up_are_found_out(unsloth):
    policy = unsloth.from_pretrained(
        MODEL, lora_rank=4, device="cpu", max_length=128, fast_inference=False
    )
    attend_within_rows(policy, keeps_apart=False)
    assert not policy._joins_alike()


def test_weights_in_4_bits_count_by_the_shape_that_they_stand_for(unsloth, monkeypatch):
    """Two to a byte, in a model that does not say so, as Unsloth makes it from vLLM's tensors."""
    monkeypatch.setattr(checks, "check_quantised", lambda *_, **__: None)  # asks for bitsandbytes
    options = {"lora_rank": 4, "device": "cpu", "max_length": 128}
    plain = unsloth.from_pretrained(MODEL, **options)
    assert plain.parameter_count == plain.model.get_base_model().num_parameters()
    packed = unsloth.from_pretrained(MODEL, load_in_4bit=True, **options)
    assert packed.parameter_count == plain.parameter_count
    assert packed.model.get_base_model().num_parameters() < plain.parameter_count


@pytest.mark.parametrize("value", ["1", "2", "true", ""])
def test_standby_is_refused(unsloth, monkeypatch, value):
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", value)
    with pytest.raises(ValueError, match="UNSLOTH_VLLM_STANDBY"):
        unsloth.from_pretrained(MODEL, device="cpu")


def test_standby_that_is_off_is_no_obstacle(unsloth, monkeypatch):
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "0")
    unsloth.from_pretrained(MODEL, lora_rank=4, device="cpu", max_length=96, fast_inference=False)


@pytest.mark.slow
def test_unsloth_takes_the_room_of_an_engine_that_nothing_uses(unsloth, vllm):
    used = tiny_policy(vllm={})
    options = {"lora_rank": 4, "device": "cpu", "max_length": 96, "gpu_memory_utilization": 0.4}
    with pytest.raises(ValueError, match="an engine with other settings is in use"):
        unsloth.from_pretrained(MODEL, **options)
    assert "shutdown" not in vllm[0].events
    del used
    policy = unsloth.from_pretrained(MODEL, **options)
    assert "shutdown" in vllm[0].events
    assert (policy.engine.share, policy.engine.stops) == (0.4, False)
    unsloth.from_pretrained(MODEL, **options | {"max_length": 64})


def test_a_head_in_float32_is_asked_for_and_taken_back(unsloth, monkeypatch):
    monkeypatch.setenv("UNSLOTH_VLLM_FP32_LM_HEAD", "0")
    options = {"lora_rank": 4, "device": "cpu", "max_length": 96}
    unsloth.from_pretrained(MODEL, float32_head=True, **options)
    assert os.environ["UNSLOTH_VLLM_FP32_LM_HEAD"] == "1"
    unsloth.from_pretrained(MODEL, float32_head=False, **options)
    assert os.environ["UNSLOTH_VLLM_FP32_LM_HEAD"] == "0"


@pytest.mark.parametrize("chunk", [2**24, 66 * 4])  # the second computes logits again
@pytest.mark.parametrize("float32_head", [False, True])
def test_the_trainer_computes_its_logits_in_the_precision_that_is_asked_for(
    unsloth, monkeypatch, float32_head, chunk
):
    """Under autocast, as on a GPU: states and head in bfloat16, and logits in float32 on demand."""
    policy = unsloth.from_pretrained(
        MODEL,
        lora_rank=4,
        device="cpu",
        max_length=96,
        fast_inference=False,
        float32_head=float32_head,
    )
    monkeypatch.setattr("workbench.policies.trainable.LOGIT_CHUNK", chunk)
    monkeypatch.setattr(policy, "_precision", lambda: torch.autocast("cpu", torch.bfloat16))
    policy.head.to(torch.bfloat16)
    width = policy.head.in_features
    rollouts = hand_made([1, 0], ["a", "a"], lengths=[5, 9])
    states = torch.randn(14, width, generator=torch.manual_seed(0)).bfloat16().requires_grad_()
    monkeypatch.setattr(policy, "_states_in", lambda *_: (states, torch.arange(14)))
    own = policy.logprobs(rollouts)[torch.as_tensor(rollouts.response.mask())]
    own.sum().backward()
    exact = (states.detach().double() @ policy.head.weight.detach().double().mT).log_softmax(-1)
    targets = torch.as_tensor(rollouts.response.values).long()
    error = (own.detach() - exact.gather(1, targets[:, None])[:, 0]).abs().max()
    assert states.grad.abs().max() > 0
    assert (error < 1e-5) == float32_head


# Before anything is loaded


def test_four_bits_with_vllm_need_the_plugin(monkeypatch):
    asked = []
    monkeypatch.setattr("workbench.labs.checks.check_gpu", lambda device, what: "cuda")
    monkeypatch.setattr("workbench.labs.checks.check_packages", lambda *names: asked.extend(names))
    problems = arithmetic(16)
    wb.labs.unsloth("owner/name", problems, load_in_4bit=True)
    assert asked[-3:] == ["vllm", "bitsandbytes", "vllm_bnb_plugin"]
    asked.clear()
    wb.labs.unsloth("owner/name", problems, load_in_4bit=True, fast_inference=False)
    assert "vllm_bnb_plugin" not in asked


def test_the_setting_of_pods_is_one_call(monkeypatch):
    """The values of the released configuration, and a manifest that makes the lab again."""
    monkeypatch.setattr("workbench.labs.checks.check_gpu", lambda device, what: "cuda")
    monkeypatch.setattr("workbench.labs.checks.check_packages", lambda *names: None)
    lab = wb.labs.pods_setting_a(arithmetic(16))
    assert lab.name == "unsloth:Qwen/Qwen2.5-3B-Instruct"
    assert lab.sampling == Sampling(temperature=0.9, max_new_tokens=512)
    assert lab.learning_rate == 5e-6
    assert lab.optimizer == {"weight_decay": 0.1, "betas": (0.9, 0.99)}
    assert lab.optimizer_bits == 8
    assert lab.warm_up == 10  # the first hundredth of 1,000 rounds
    assert lab.max_grad_norm == 0.1
    assert lab.config["load_in_4bit"]
    assert lab.config["lora_rank"] == 64
    again = wb.config.recorded_lab(json.loads(json.dumps(lab.config)))
    assert again.config == lab.config
    assert again.optimizer == lab.optimizer
    assert (again.optimizer_bits, again.warm_up) == (8, 10)
    assert wb.labs.pods_setting_a(arithmetic(16), load_in_4bit=False).config["lora_rank"] == 64
    assert wb.labs.pods_setting_a(arithmetic(16), rounds=250).warm_up == 3


def test_the_setting_of_pods_is_refused_without_bitsandbytes(monkeypatch):
    """Also without 4 bits, as long as the moments of AdamW have 8."""
    present = {"unsloth", "unsloth_zoo", "peft", "vllm", "vllm_bnb_plugin"}
    monkeypatch.setattr("workbench.labs.checks.check_gpu", lambda device, what: "cuda")
    monkeypatch.setattr(checks, "find_spec", lambda name: name if name in present else None)
    for options in ({}, {"load_in_4bit": False}):
        with pytest.raises(ImportError, match=r"missing: bitsandbytes; install with: pip install"):
            wb.labs.pods_setting_a(arithmetic(16), **options)
    lab = wb.labs.pods_setting_a(arithmetic(16), load_in_4bit=False, optimizer_bits=32)
    assert lab.optimizer_bits == 32


class AdamW8bit(torch.optim.Optimizer):
    """Stands in for that of bitsandbytes: its kinds of state, and a step that depends on them."""

    TABLE = torch.arange(256.0)  # one for all parameters

    def __init__(self, parameters, lr, **options):
        super().__init__(list(parameters), {"lr": lr, **options})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["state1"] = torch.zeros(parameter.shape, dtype=torch.uint8)
                    state["qmap1"] = self.TABLE
                state["step"] += 1
                assert type(state["step"]) is int
                state["state1"] += (parameter.grad > 0).to(torch.uint8)
                parameter -= group["lr"] * state["step"] * state["qmap1"][state["state1"].long()]

    def state_dict(self):
        told = super().state_dict()
        for number, state in told["state"].items():
            moments = {name: state[name] for name in ("state1", "qmap1")}
            told["state"][number] = {"step": state["step"], "quantised": moments}
        return told

    def load_state_dict(self, told):
        """Without the casts to the type of the weights that torch's own has."""
        parameters = [each for group in self.param_groups for each in group["params"]]
        for number, state in told["state"].items():
            self.state[parameters[number]] = dict(state)


def eight_bits(tmp_path, rounds, start=True):
    lab = replace(small_lab(held_out=0), optimizer_bits=8, warm_up=4, optimizer={})
    options = {"problems_per_round": 2, "learning_rate": 1e-5, "mini_batches": 2}
    if start:
        run = wb.Run(lab, wb.methods.grpo(4), out=tmp_path, **options)
    else:
        run = wb.Run.resume(tmp_path, lab=lab)
    return go(run, rounds)


@pytest.mark.slow
def test_moments_of_8_bits_and_a_warm_up_go_on_where_a_run_has_stopped(monkeypatch, tmp_path):
    optimizers = module("bitsandbytes.optim", AdamW8bit=AdamW8bit)
    monkeypatch.setitem(sys.modules, "bitsandbytes", module("bitsandbytes", optim=optimizers))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optimizers)
    rows = eight_bits(tmp_path / "whole", 3)
    # Two steps a round: the rate of a row is that of its last step.
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.5e-5, 1e-5, 1e-5])
    eight_bits(tmp_path / "parts", 1)
    eight_bits(tmp_path / "parts", 3, start=False)
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "parts"))
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_moments_of_8_bits_are_refused_on_a_cpu():
    with pytest.raises(ValueError, match=r"device='cpu': .* optimizer_bits=32"):
        wb.labs.UnslothConfig(str(MODEL), device="cpu", fast_inference=False, optimizer_bits=8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_full_training_in_16_bits_is_refused(dtype):
    with pytest.raises(ValueError, match=rf"dtype='{dtype}': weights in 16 bits cannot be trained"):
        wb.labs.transformers(str(MODEL), arithmetic(16), dtype=dtype)
    adapted = wb.labs.transformers(str(MODEL), arithmetic(16), dtype=dtype, lora=LORA)
    assert adapted.config["dtype"] == dtype


def test_layers_are_computed_again_where_it_is_asked_for():
    assert tiny_policy(gradient_checkpointing=True).model.is_gradient_checkpointing
    assert not tiny_policy().model.is_gradient_checkpointing
