"""Packed rows against padded ones: the same log-probabilities, losses and gradients."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import Gradients, tiny_policy
from contract import LORA, shaken
from hypothesis import given
from hypothesis import strategies as st
from test_decoding import built

from workbench.grpo import grpo_step
from workbench.objectives import Objective
from workbench.policies import Sampling, packing, trainable
from workbench.policies.batching import micro_batches
from workbench.problems import Problem
from workbench.rollouts import Ragged, Rollouts

PACKED = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gpt2": ("gpt2", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
}
PADDED = {
    "mistral with a window": ("mistral", {"sliding_window": 8}),
    "qwen3 with windows": (
        "qwen3",
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 8,
            "use_sliding_window": True,
        },
    ),
    "gpt_neox": ("gpt_neox", {}),
    "eager attention": ("llama", {"attn_implementation": "eager"}),
}


def rollouts_of(prompts, lengths, seed=0):
    """Random responses of given lengths (R,), response i to the prompt number prompts[i]."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(4, 14, 3 + 2 * number) for number in range(max(prompts) + 1)]
    responses = [rng.integers(4, 14, length) for length in lengths]
    return Rollouts(
        problem=[f"p{number}" for number in prompts],
        prompt=Ragged.of([texts[number] for number in prompts], np.int32),
        response=Ragged.of(responses, np.int32),
        old_logprobs=Ragged.of([np.full(length, -2.5) for length in lengths], np.float32),
    )


# Groups share prompts and are not contiguous; responses of very different lengths, one of a single
# token and one without any.
MIXED = rollouts_of([0, 1, 0, 2, 1, 0, 2, 3], [9, 1, 30, 4, 2, 5, 0, 17])
ADVANTAGES = np.array([1.0, -1.0, 0.5, 2.0, -0.5, 0.0, 1.0, -2.0])


def step(policy, rollouts, advantages, **options):
    """Gradient, loss and log-probabilities of one step."""
    keeper = Gradients(policy)
    options = {"max_grad_norm": 1e9, **options}
    stats = grpo_step(policy, keeper, rollouts, advantages, **options)
    with torch.no_grad():
        policy.model.eval()
        logprobs, entropies = policy.logprobs(rollouts, entropy=True)
    return keeper.seen, stats, logprobs, entropies


def assert_same(policy, rollouts, advantages, **options):
    """Packed and padded rows agree."""
    assert policy.layout == "packed"
    gradient, stats, logprobs, entropies = step(policy, rollouts, advantages, **options)
    policy.layout = "padded"
    expected = step(policy, rollouts, advantages, **options)
    policy.layout = "packed"
    assert (gradient - expected[0]).norm() <= 1e-4 * expected[0].norm() + 1e-7
    assert stats.loss == pytest.approx(expected[1].loss, abs=1e-5)
    assert np.allclose(stats.entropy, expected[1].entropy, atol=1e-4, equal_nan=True)
    assert torch.allclose(logprobs, expected[2], atol=1e-4)
    assert torch.allclose(entropies, expected[3], atol=1e-4)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.slow
def test_packed_rows_give_the_same_as_padded_rows(kind):
    family, settings = PACKED[kind]
    policy = built(family, **settings)
    assert_same(policy, MIXED, ADVANTAGES)
    assert_same(policy, MIXED, ADVANTAGES, micro_tokens=25)


@pytest.mark.slow
@pytest.mark.parametrize("short", [0, 1, 3])
@pytest.mark.parametrize("kind", PACKED)
def test_rows_without_a_mask_give_the_same(kind, short, monkeypatch):
    """Beyond a length no mask is made, neither for prompts nor for responses."""
    monkeypatch.setattr(packing, "SHORT", short)
    family, settings = PACKED[kind]
    policy = built(family, **settings)
    assert_same(policy, MIXED, ADVANTAGES)
    policy.share_prefixes = True
    assert_same(policy, MIXED, ADVANTAGES)


def test_no_mask_grows_with_the_square_of_the_tokens(policy):
    for length in (1024, 4096):
        rollouts = rollouts_of([0, 0, 1], [length, length, 3])
        packed = packing.pack(rollouts, "cpu")
        tensors = [each for rows in packed.rows for each in vars(rows).values()]
        numbers = sum(each.numel() for each in tensors if each is not None)
        assert numbers < 8 * 2 * length
    tokens = rollouts_of([0, 0, 1], [packing.SHORT + 40, packing.SHORT + 30, 3])
    assert_same(policy, tokens, np.array([1.0, -1.0, 0.5]))


@pytest.mark.parametrize("kind", PADDED)
def test_other_models_are_padded(kind):
    family, settings = PADDED[kind]
    policy = built(family, **settings)
    assert policy.layout == "padded"
    assert policy.model.config._attn_implementation != packing.NAME
    _, stats, _, _ = step(policy, MIXED, ADVANTAGES)
    assert np.isfinite(stats.loss)


def test_responses_stay_within_the_positions_that_a_model_has_learnt():
    policy = built("gpt2", **PACKED["gpt2"][1], max_position_embeddings=16)
    assert policy.max_length == 16
    with pytest.raises(ValueError, match="max_length=16"):
        policy.generate([Problem("a", "1+2=", "3")], [1], Sampling(max_new_tokens=40), 0)


def test_a_model_that_computes_otherwise_is_padded(monkeypatch):
    """The structure is that of the family, and the numbers are not."""
    plain = packing._plain_attention
    monkeypatch.setattr(packing, "_plain_attention", lambda *arguments: 1.01 * plain(*arguments))
    policy = tiny_policy()
    assert policy.layout == "padded"
    assert policy.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "rollouts",
    [
        rollouts_of([0], [7]),
        rollouts_of([0], [1]),
        rollouts_of([0, 1, 2], [1, 1, 1]),
        rollouts_of([0, 0, 0, 0], [3, 3, 3, 3]),
        rollouts_of([0, 1], [5, 0]),
    ],
    ids=["one row", "one token", "tokens alone", "one group", "an empty response"],
)
def test_small_tables(policy, rollouts):
    assert_same(policy, rollouts, np.linspace(1, 2, len(rollouts)))


# Responses to two prompts that begin alike: none, one, several or all of their tokens are those of
# another one, which may be longer. The same tokens behind another prompt are not the same.
ALIKE = replace(
    rollouts_of([0, 0, 1, 0, 0, 1, 0, 0], [4, 4, 4, 6, 2, 4, 1, 0]),
    response=Ragged.of(
        [
            [5, 6, 7, 8],
            [5, 6, 9, 8],
            [5, 6, 7, 8],
            [5, 6, 7, 8, 4, 4],
            [5, 6],
            [9, 6, 7, 8],
            [7],
            [],
        ],
        np.int32,
    ),
)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("rollouts", [ALIKE, MIXED], ids=["alike", "not alike"])
def test_tokens_that_responses_begin_with_can_be_computed_once(kind, rollouts):
    family, settings = PACKED[kind]
    policy = built(family, **settings)
    policy.share_prefixes = True
    assert_same(policy, rollouts, ADVANTAGES)
    assert_same(policy, rollouts, ADVANTAGES, micro_tokens=12)


def test_logits_in_several_chunks_give_the_same(policy, monkeypatch):
    """Tokens that one state predicts are in one chunk, and several chunks are recomputed."""
    policy.share_prefixes = True
    vocabulary = policy.head.weight.shape[0]
    whole = step(policy, ALIKE, ADVANTAGES)
    for states in (1, 3):
        monkeypatch.setattr(trainable, "LOGIT_CHUNK", states * vocabulary)
        gradient, _, logprobs, entropies = step(policy, ALIKE, ADVANTAGES)
        assert (gradient - whole[0]).norm() <= 1e-5 * whole[0].norm()
        assert torch.allclose(logprobs, whole[2], atol=1e-5)
        assert torch.allclose(entropies, whole[3], atol=1e-5)


@pytest.mark.parametrize("short", [0, 3, packing.SHORT])
@given(st.data())
@pytest.mark.slow
def test_each_distinct_prefix_is_one_packed_token(short, data):
    """Every token is predicted from its own text, and none is computed twice."""
    tokens = st.integers(1, 3)
    size = data.draw(st.integers(1, 6))
    prompts = [[1], [1, 2], [2, 1, 1]]
    chosen = data.draw(st.lists(st.sampled_from(prompts), min_size=size, max_size=size))
    responses = data.draw(st.lists(st.lists(tokens, max_size=6), min_size=size, max_size=size))
    rollouts = Rollouts(
        problem=[f"p{len(prompt)}" for prompt in chosen],
        prompt=Ragged.of(chosen, np.int32),
        response=Ragged.of(responses, np.int32),
    )
    with patch.object(packing, "SHORT", short):
        packed = packing.pack(rollouts, "cpu", share_prefixes=True)
    # What each packed token can see, itself included, in the order of the texts: its own text.
    texts = {}
    for rows in packed.rows:
        size = rows.keys.shape[1]
        seen = torch.ones(len(rows.keys), size, size).tril() > 0
        if rows.bias is not None:
            seen = rows.bias[:, 0] == 0
        for row in range(len(rows.queries)):
            for place, query in enumerate(rows.queries[row].tolist()):
                visible = rows.keys[row][seen[row, place]]
                visible = visible[packed.positions[visible].argsort()]
                texts.setdefault(query, tuple(packed.ids[visible].tolist()))
    before = [
        tuple(prompt + response[:length])
        for prompt, response in zip(chosen, responses)
        for length in range(len(response))
    ]
    predictors = packed.predictors[packed.predicts].tolist()
    assert [texts[place] for place in predictors] == before
    needed = {
        (tuple(prompt), tuple(text[: length + 1]))
        for prompt, response in zip(chosen, responses)
        for text in [prompt + response[:-1]]
        for length in range(len(text))
    }
    assert len(packed.ids) == len(needed)


def test_large_attention_goes_through_torch(policy, monkeypatch):
    monkeypatch.setattr(packing, "SMALL", 0)
    assert_same(policy, MIXED, ADVANTAGES)


def test_a_table_without_tokens_has_empty_logprobs(policy):
    logprobs, entropies = policy.logprobs(rollouts_of([0, 1], [0, 0]), entropy=True)
    assert logprobs.shape == entropies.shape == (2, 0)


def test_a_prompt_without_tokens_is_refused(policy):
    empty = MIXED.assign(prompt=Ragged.of([[]] * 8, np.int32))
    with pytest.raises(ValueError, match="prompt"):
        policy.logprobs(empty)


def test_adapters_and_their_reference():
    pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    policy = shaken(tiny_policy(lora=LORA))
    options = {"objective": Objective(kl=0.1), "reference": policy.frozen()}
    assert_same(policy, MIXED, ADVANTAGES, **options)


def test_a_frozen_copy_is_packed_too(policy):
    reference = policy.frozen()
    shaken(policy)
    assert reference.layout == "packed"
    options = {"objective": Objective(kl=0.1), "reference": reference}
    assert_same(policy, MIXED, ADVANTAGES, **options)


def test_layers_that_are_computed_again_give_the_same_gradient(policy):
    gradient, _, _, _ = step(policy, MIXED, ADVANTAGES)
    policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    again, _, _, _ = step(policy, MIXED, ADVANTAGES)
    assert torch.equal(gradient, again)


def test_dropout_drops_in_training_only():
    policy = built("llama", attention_dropout=0.5)
    assert policy.layout == "packed"
    policy.model.eval()
    whole = policy.logprobs(MIXED).detach()
    policy.model.train()
    dropped = policy.logprobs(MIXED).detach()
    assert torch.isfinite(dropped).all()
    assert not torch.allclose(whole, dropped, atol=1e-2)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_bfloat16_over_float32_weights_is_close_and_its_gradient_is_float32(policy, layout):
    """What a GPU does by default, on a CPU."""
    policy.layout = layout
    gradient, _, logprobs, _ = step(policy, MIXED, ADVANTAGES)
    policy.autocast = True
    rounded, _, near, _ = step(policy, MIXED, ADVANTAGES)
    assert rounded.dtype == torch.float32
    assert not torch.equal(near, logprobs)
    assert (near - logprobs).abs().max() < 0.3
    assert (rounded - gradient).norm() < 0.1 * gradient.norm()


def test_micro_batches_of_packed_rows_count_a_prompt_once_for_its_group():
    """Prompts of 3 and 5 tokens: 3 + 9 + 30 + 5 and 5 + 1 + 2 are within 47."""
    rows = np.array([0, 1, 2, 4, 5])
    batches = [batch.tolist() for batch in micro_batches(MIXED, rows, 47, layout="packed")]
    assert batches == [[0, 2, 5], [1, 4]]
    split = [batch.tolist() for batch in micro_batches(MIXED, rows, 42, layout="packed")]
    assert split == [[0, 2], [5, 1, 4]]
    alone = [batch.tolist() for batch in micro_batches(MIXED, rows, 1, layout="packed")]
    assert alone == [[0], [2], [5], [1], [4]]


def test_micro_batches_of_packed_rows_count_every_prompt_of_a_problem():
    """A course lets rollouts of one problem begin with parts of a solution of different lengths."""
    prompts = [[5] * 40, [5] * 50, [5] * 40, [5] * 60]
    rollouts = Rollouts(
        problem=["a"] * 4,
        prompt=Ragged.of(prompts, np.int32),
        response=Ragged.of([[4] * 5] * 4, np.int32),
    )
    batches = micro_batches(rollouts, np.arange(4), 100, layout="packed")
    assert [batch.tolist() for batch in batches] == [[0, 2], [1], [3]]


def test_micro_batches_of_rows_end_to_end_count_tokens_and_no_padding():
    """Rows of 12, 6, 33, 7 and 8 tokens: the first three have 51, and padded they would have 99."""
    rows = np.array([0, 1, 2, 4, 5])
    sizes = (MIXED.prompt.lengths + MIXED.lengths)[rows]
    assert sizes.tolist() == [12, 6, 33, 7, 8]
    batches = [batch.tolist() for batch in micro_batches(MIXED, rows, 51, layout="joined")]
    assert batches == [[0, 1, 2], [4, 5]]
    tighter = [batch.tolist() for batch in micro_batches(MIXED, rows, 50, layout="joined")]
    assert tighter == [[0, 1], [2, 4, 5]]
    padded = [batch.tolist() for batch in micro_batches(MIXED, rows, 51)]
    assert padded == [[1, 4, 5, 0], [2]]


def test_rows_without_advantage_are_not_computed(policy):
    seen = []
    logprobs = policy.logprobs

    def counted(rollouts, *arguments, **options):
        seen.append(len(rollouts))
        return logprobs(rollouts, *arguments, **options)

    policy.logprobs = counted
    weights = np.array([1, 1, 0, 1, 1, 1, 1, 1.0])
    grpo_step(policy, Gradients(policy), MIXED, ADVANTAGES, weights=weights)
    # Three rows are left out: of advantage 0, of weight 0, and without any token.
    assert sum(seen) == 5


def test_entropies_have_a_gradient_only_where_it_is_asked_for(policy):
    _, entropies = policy.logprobs(MIXED, entropy=True)
    assert entropies.requires_grad
    logprobs, entropies = policy.logprobs(MIXED, entropy=True, entropy_gradient=False)
    assert logprobs.requires_grad
    assert not entropies.requires_grad


def test_a_step_on_its_own_samples_needs_no_old_logprobs(policy):
    """The same gradient as with the log-probabilities of a forward pass before the step."""
    rollouts = MIXED.take([0, 1, 2, 3])
    rescored = policy.rescored(rollouts)
    expected, _, _, _ = step(policy, rescored, ADVANTAGES[:4])
    unknown = replace(
        rollouts, old_logprobs=Ragged.of([np.full(n, np.nan) for n in rollouts.lengths], np.float32)
    )
    own, stats, _, _ = step(policy, unknown, ADVANTAGES[:4], on_policy=np.ones(4, bool))
    assert (own - expected).norm() <= 1e-5 * expected.norm()
    assert (stats.logprob_diff == 0).all()
