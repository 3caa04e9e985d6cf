"""How tokens are drawn, and sampling with merged weights against the model's own computation."""

import functools
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import tiny_policy
from contract import GREEDY, LORA, PROMPTS, SAMPLING, fresh, responses, shaken
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from workbench.policies import Sampling, decoding, merged
from workbench.policies import transformers as transformers_policy
from workbench.policies.decoding import draw_tokens, inverse_cdf, restrict
from workbench.policies.transformers import TransformersPolicy
from workbench.rollouts import Ragged

NEEDS_PEFT = pytest.mark.skipif(
    not find_spec("peft"), reason="peft is not installed (pip install peft)"
)


def built(family, attn_implementation="sdpa", **settings):
    """A policy on a small random model of a family, with the tiny model's tokenizer."""
    tokenizer = tiny_policy().tokenizer
    config = AutoConfig.for_model(
        family,
        **{
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 80,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 256,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **settings,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
    # Norms and biases start as ones and zeros, which would hide where they are left out.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return TransformersPolicy(model, tokenizer, name=family)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MERGED = {
    "llama": ("llama", {}),
    "llama with one key each": ("llama", {"num_key_value_heads": 4}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rotation": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 with one key for all": ("qwen3", {"head_dim": 16, "num_key_value_heads": 1}),
}
PLAIN = {
    "mistral with a window": ("mistral", {"sliding_window": 8}),
    "qwen3 with windows": (
        "qwen3",
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 8,
            "use_sliding_window": True,
        },
    ),
    "gemma": ("gemma", {"head_dim": 16}),
    "gpt_neox": ("gpt_neox", {}),
}


@pytest.mark.parametrize("kind", [*MERGED, *PLAIN])
@pytest.mark.slow
def test_every_architecture_samples_what_its_own_forward_pass_says(kind):
    family, settings = {**MERGED, **PLAIN}[kind]
    policy = built(family, **settings)
    assert policy.merges == (kind in MERGED)
    drawn = policy.generate(PROMPTS, [3] * 6, Sampling(max_new_tokens=90), seed=1)
    assert drawn.lengths.max() > merged.FIRST_PLACES  # the cache has grown
    assert np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded()).max() < 1e-4
    with torch.no_grad():
        _, entropy = policy.logprobs(drawn, entropy=True)
    assert np.abs(entropy.numpy() - drawn.token_entropy.padded()).max() < 1e-4

    greedy = policy.generate(PROMPTS, [1] * 6, GREEDY, seed=0)
    for i in range(6):
        prompt = torch.tensor([greedy.prompt[i].tolist()])
        own = policy.model.generate(prompt, do_sample=False, max_new_tokens=24, pad_token_id=0)
        assert greedy.response[i].tolist() == own[0, prompt.shape[1] :].tolist()


@NEEDS_PEFT
@pytest.mark.parametrize("options", [{}, {"use_dora": True}])
def test_adapters_are_merged_only_when_they_are_plain(options):
    policy = shaken(tiny_policy(lora={**LORA, **options}))
    assert policy.merges == (not options)
    drawn = policy.generate(PROMPTS, [2] * 6, SAMPLING, seed=0)
    assert np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded()).max() < 1e-4


@NEEDS_PEFT
def test_an_adapter_on_the_head_counts_too():
    targets = ["q_proj", "lm_head"]
    policy = shaken(tiny_policy(lora={**LORA, "target_modules": targets}))
    drawn = policy.generate(PROMPTS, [2] * 6, SAMPLING, seed=0)
    assert np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded()).max() < 1e-4


def test_merged_weights_and_the_cache_of_transformers_draw_the_same():
    policy = shaken(tiny_policy())
    fast = policy.generate(PROMPTS, [5] * 6, SAMPLING, seed=4)
    policy.merges = False
    slow = policy.generate(PROMPTS, [5] * 6, SAMPLING, seed=4)
    assert responses(fast) == responses(slow)
    assert np.allclose(fast.old_logprobs.values, slow.old_logprobs.values, atol=1e-4)
    assert np.allclose(fast.token_entropy.values, slow.token_entropy.values, atol=1e-4)


class Counting(merged.MergedDecoder):
    """A decoder that counts the rows of all steps."""

    steps = 0

    def advance(self, tokens):
        Counting.steps += len(tokens)
        return super().advance(tokens)


@pytest.mark.parametrize("kind", ["the tiny model", *MERGED])
@pytest.mark.slow
def test_sharing_prefixes_draws_the_same_with_fewer_rows(kind, monkeypatch):
    monkeypatch.setattr(transformers_policy, "MergedDecoder", Counting)
    if kind == "the tiny model":
        policy = shaken(tiny_policy())
    else:
        family, settings = MERGED[kind]
        policy = built(family, **settings)
    counts = [12, 0, 30, 1, 7, 20]
    # Some tokens are drawn by several responses and some by one alone.
    sampling = Sampling(temperature=0.7, max_new_tokens=90)
    drawn = {}
    for policy.share_prefixes in (False, True):
        Counting.steps = 0
        rollouts = policy.generate(PROMPTS, counts, sampling, seed=4)
        drawn[policy.share_prefixes] = rollouts, Counting.steps
    (apart, rows_apart), (shared, rows_shared) = drawn[False], drawn[True]
    assert responses(apart) == responses(shared)
    assert np.array_equal(apart.truncated, shared.truncated)
    assert np.allclose(apart.old_logprobs.values, shared.old_logprobs.values, atol=1e-5)
    assert np.allclose(apart.token_entropy.values, shared.token_entropy.values, atol=1e-5)
    # One row a distinct prefix is computed: of every response the prompt with its first token, with
    # its first two tokens and so on up to the last but one.
    prefixes = {
        (problem, tuple(response[:length]))
        for problem, response in zip(shared.problem, responses(shared))
        for length in range(1, len(response))
    }
    assert rows_shared == len(prefixes) < rows_apart


@pytest.mark.parametrize("kind", ["the tiny model", *MERGED])
@pytest.mark.slow
def test_what_all_prompts_begin_with_is_computed_once(kind, monkeypatch):
    if kind == "the tiny model":
        policy = shaken(tiny_policy())
    else:
        family, settings = MERGED[kind]
        policy = built(family, **settings)
    beginning = "1+2+3+4+5+6+7+8+9+"
    prompts = [beginning + end for end in ("1=", "2+3+4=", "5=", "12345+6=")]
    taken_in = []
    begin = merged.MergedLayer.begin

    def counting(self, states, *others):
        taken_in.append(len(states))
        return begin(self, states, *others)

    monkeypatch.setattr(merged.MergedLayer, "begin", counting)
    drawn = {}
    for least in (16, 10**6):
        monkeypatch.setattr(merged, "LEAST_SHARED", least)
        rollouts = policy.generate(prompts, [5, 3, 0, 8], SAMPLING, seed=4)
        drawn[least] = rollouts, sum(taken_in)
        taken_in.clear()
    (shared, few), (apart, many) = drawn.values()
    assert responses(shared) == responses(apart)
    assert np.allclose(shared.old_logprobs.values, apart.old_logprobs.values, atol=1e-4)
    # Three prompts are sampled, of which the longest has eight characters of its own.
    tokens = len(policy.encode([beginning])[0])
    layers = len(policy.decoder.layers)
    assert many - few == 2 * tokens * layers


def test_without_merged_weights_prefixes_are_not_shared(monkeypatch):
    started = []
    spread = decoding.CachedDecoder.spread

    def watched(self, rows):
        started.append(len(rows))
        spread(self, rows)

    monkeypatch.setattr(decoding.CachedDecoder, "spread", watched)
    policy = shaken(tiny_policy())
    policy.merges = False
    apart = policy.generate(PROMPTS, [5] * 6, SAMPLING, seed=4)
    policy.share_prefixes = True
    first = len(started)
    assert responses(policy.generate(PROMPTS, [5] * 6, SAMPLING, seed=4)) == responses(apart)
    assert started[0] == started[first] == 30, "a row for each response from the start"


@functools.cache
def loaded_once():
    """The tiny policy for all examples of a property, none of which changes its weights."""
    return tiny_policy()


@pytest.mark.slow
@given(st.data())
def test_branching_copies_what_was_asked_for(data):
    """Rows hold their own number, so that a copy says which row it came from."""
    policy = loaded_once()
    with torch.inference_mode():
        decoder, _ = policy._prefill(
            Ragged.of([[1], [1, 1], [1, 1, 1]], np.int32), merged.MergedDecoder
        )
        decoder.spread(np.arange(3))
        for part in (decoder.keys, decoder.values):
            part.copy_(torch.arange(3.0)[:, None, None, None].expand(part.shape[1:]))
        decoder.positions[:] = torch.arange(3)
        names = np.arange(3)
        for _ in range(data.draw(st.integers(1, 4))):
            size = len(names)
            children = np.array(
                data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
            )
            if not children.any():
                children[0] = 1
            order = decoder.branch(children)
            assert sorted(order) == np.repeat(np.arange(size), children).tolist()
            names = names[order]
            for part in decoder._used():
                held = part.numpy().transpose(1, 0, 2, 3, 4).reshape(len(order), -1)
                assert (held == names[:, None]).all()
            assert decoder.positions[: decoder.rows].tolist() == names.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, pytest.param(LORA, marks=NEEDS_PEFT)])
def test_products_of_16_bits_are_merged_too(lora):
    policy = shaken(tiny_policy(dtype="bfloat16", lora=lora))
    assert policy.merges
    drawn = policy.generate(PROMPTS, [3] * 6, SAMPLING, seed=1)
    # What the model itself computes in 16 bits is as far from float32 as this.
    gaps = np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded())
    assert gaps.max() < 0.5 and gaps[gaps > 0].mean() < 0.02
    exact = tiny_policy(lora=lora)
    exact.load_state_dict({name: w.float() for name, w in policy.state_dict().items()})
    gaps = np.abs(fresh(exact, drawn) - drawn.old_logprobs.padded())
    assert gaps.max() < 0.5 and gaps[gaps > 0].mean() < 0.02


def test_a_model_in_another_precision_is_not_merged():
    assert not tiny_policy(dtype="float16").merges


def test_a_model_that_computes_otherwise_is_not_merged(monkeypatch):
    """The structure is that of the family, and the numbers are not."""
    normal = merged.Normalised.__call__
    monkeypatch.setattr(merged.Normalised, "__call__", lambda self, *x: 1.01 * normal(self, *x))
    assert not tiny_policy().merges


def test_rows_do_not_leak_from_call_to_call():
    policy = tiny_policy()
    alone = responses(policy.generate(PROMPTS[:1], [3], SAMPLING, [7]))
    policy.generate(PROMPTS, [9] * 6, SAMPLING, seed=1)
    assert responses(policy.generate(PROMPTS[:1], [3], SAMPLING, [7])) == alone


def test_a_greedy_token_is_the_most_likely_one_and_an_impossible_one_has_no_entropy():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]])
    tokens, logprobs, entropies = draw_tokens(logits, torch.tensor([0.9]), Sampling(temperature=0))
    p = 1 / (1 + np.exp(-1))
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(np.log(p), abs=1e-6)
    assert entropies.item() == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p), abs=1e-6)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 12),
)
def test_the_drawn_token_is_that_of_the_whole_running_sum(weights, uniform, block):
    """However the vocabulary is split into blocks."""
    before, decoding.BLOCK = decoding.BLOCK, block
    try:
        row = torch.tensor([weights], dtype=torch.float32)
        uniforms = torch.tensor([uniform], dtype=torch.float64)
        token = inverse_cdf(row, uniforms, torch.tensor([0])).item()
    finally:
        decoding.BLOCK = before
    sums = np.cumsum(weights, dtype=np.float64)
    assert token == np.searchsorted(sums, uniform * sums[-1], side="right")
    assert weights[token] > 0


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"temperature": 0.7, "top_p": 0.8, "top_k": 5}]
)
@pytest.mark.parametrize("block", [4, 1024])
def test_tokens_that_share_a_row_of_logits_are_drawn_as_from_rows_of_their_own(
    options, block, monkeypatch
):
    monkeypatch.setattr(decoding, "BLOCK", block)
    torch.manual_seed(0)
    logits = 3 * torch.randn(4, 10)
    rows = torch.tensor([0, 0, 3, 1, 0, 3])
    uniforms = torch.rand(6, dtype=torch.float64)
    shared = draw_tokens(logits, uniforms, Sampling(**options), rows)
    apart = draw_tokens(logits[rows], uniforms, Sampling(**options))
    for one, other in zip(shared, apart):
        assert torch.equal(one, other)


def test_rare_tokens_of_a_large_vocabulary_keep_their_chance():
    """150,000 tokens of equal probability: a float32 sum would end at another total."""
    size = 150_000
    row = torch.full((1, size), 1 / size)
    uniforms = torch.linspace(0, 1, 1001, dtype=torch.float64)[:1000]
    tokens = inverse_cdf(row, uniforms, torch.zeros(1000, dtype=torch.int64))
    assert (tokens - (uniforms * size).long()).abs().max() <= 1


def test_top_k_and_top_p_keep_the_most_likely_tokens():
    probabilities = torch.tensor([[0.05, 0.5, 0.15, 0.3]])
    head = [[0, pytest.approx(0.5), 0, pytest.approx(0.3)]]
    assert restrict(probabilities, Sampling(top_p=0.7)).tolist() == head
    assert restrict(probabilities, Sampling(top_k=1)).tolist() == [[0, 0.5, 0, 0]]
    # The first token holds the mass exactly, so that no other one stays.
    halves = torch.tensor([[0.25, 0.5, 0.25]])
    assert restrict(halves, Sampling(top_p=0.5)).tolist() == [[0, 0.5, 0]]


def test_weights_of_the_moment_are_merged():
    """Nothing of an earlier call is kept but memory."""
    policy = tiny_policy()
    before = responses(policy.generate(PROMPTS, [1] * 6, GREEDY, seed=0))
    state = policy.state_dict()
    shaken(policy, 0.3)
    assert responses(policy.generate(PROMPTS, [1] * 6, GREEDY, seed=0)) != before
    policy.load_state_dict(state)
    assert responses(policy.generate(PROMPTS, [1] * 6, GREEDY, seed=0)) == before


@pytest.mark.slow
def test_rounding_of_a_deep_model_is_no_other_computation():
    """Logits of some hundreds and more after 60 layers: their rounding is larger than 1e-4."""
    model = built("llama", num_hidden_layers=60, tie_word_embeddings=False).model
    with torch.no_grad():
        model.lm_head.weight.mul_(1000)
    assert TransformersPolicy(model, tiny_policy().tokenizer).merges
