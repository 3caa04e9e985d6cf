"""Row weights and advantages of tokens: the gradient of a step against a computation in float64.

The computation follows the formulas rollout by rollout, without padding and without any function of
`workbench.objectives`, on a random model of two layers.
"""

import copy
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import Gradients, go, hand_made
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import workbench as wb
from workbench.grpo import grpo_step
from workbench.labs import shipped
from workbench.objectives import IMPORTANCE_SAMPLING, LOSS_AGGREGATION, Objective
from workbench.policies.transformers import TransformersPolicy
from workbench.rollouts import Ragged
from workbench.slots import Selection, Slot

TEMPERATURE = 1.3
LENGTH = 10  # the constant of loss_aggregation="constant"
WEIGHTS = np.array([0.3, 2.0, 0.0, 1.7, 0.9, 0.0, 2.6, 1.0])
ADVANTAGES = np.array([1.2, -0.7, 2.0, -1.1, 0.4, -0.5, 0.8, -0.3])


def random_policy(model_class, config_class, seed):
    tokenizer = AutoTokenizer.from_pretrained(shipped("models/tiny"))
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    return TransformersPolicy(model_class(config), tokenizer)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(request):
    if request.param == "qwen3":
        return random_policy(Qwen3ForCausalLM, Qwen3Config, seed=1)
    return random_policy(LlamaForCausalLM, LlamaConfig, seed=2)


@pytest.fixture(scope="module")
def reference():
    return random_policy(Qwen3ForCausalLM, Qwen3Config, seed=3).frozen()


@pytest.fixture(scope="module")
def rollouts(policy):
    """Eight rollouts of three problems, sampled with slightly other probabilities than now."""
    table = hand_made([1, 0, 0, 1, 1, 0, 1, 0], list("aaabbbcc"), seed=4)
    with torch.no_grad():
        now = policy.logprobs(table, TEMPERATURE).numpy()
    noise = np.random.default_rng(5).normal(0, 0.25, now.shape)
    old_logprobs = Ragged.of_padded((now + noise).astype(np.float32), table.lengths)
    return table.assign(old_logprobs=old_logprobs)


def token_advantages(rollouts):
    """Other numbers for every token, some of them zero."""
    rng = np.random.default_rng(6)
    rows = [rng.choice([-1.5, -0.4, 0.0, 0.6, 1.1], n) for n in rollouts.lengths]
    return Ragged.of(rows, np.float64)


# The computation by the formulas


def in_float64(policy):
    return copy.deepcopy(policy.model).double()


def distributions(model, rollouts, i):
    """Log-probabilities (n, V) over the vocabulary at each token of response i."""
    prompt = rollouts.prompt[i].tolist()
    ids = torch.tensor([prompt + rollouts.response[i].tolist()])
    logits = model(input_ids=ids).logits[0] / TEMPERATURE
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def ratios(logprobs, old_logprobs, importance_sampling, per_token):
    """The importance ratio of every token of a response, (n,)."""
    difference = logprobs - old_logprobs
    if importance_sampling == "token":
        return difference.exp()
    sequence = difference.mean().exp()
    if not per_token:
        return sequence.expand(len(logprobs))
    # GSPO-token: the value of the sequence, the gradient of the token.
    return sequence.detach() * (logprobs - logprobs.detach()).exp()


def weight_of_a_token(rollouts, i, aggregation):
    """The share of each token of rollout i in the average over the batch."""
    length = int(rollouts.lengths[i])
    if aggregation == "token":
        return 1 / int(rollouts.lengths.sum())
    if aggregation == "rollout":
        return 1 / (len(rollouts) * length)
    if aggregation == "constant":
        return 1 / (len(rollouts) * LENGTH)
    sizes = Counter(rollouts.problem)
    return 1 / (len(sizes) * sizes[rollouts.problem[i]] * length)


def formula_loss(model, reference, rollouts, advantages, weights, objective):
    low, high = objective.clip
    per_token = isinstance(advantages, Ragged)
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(len(rollouts)):
        distribution = distributions(model, rollouts, i)
        tokens = torch.as_tensor(rollouts.response[i]).long()[:, None]
        logprobs = distribution.gather(1, tokens)[:, 0]
        old_logprobs = torch.as_tensor(rollouts.old_logprobs[i]).double()
        advantage = torch.as_tensor(advantages[i]).double()

        ratio = ratios(logprobs, old_logprobs, objective.importance_sampling, per_token)
        clipped = ratio.clamp(1 - low, 1 + high)
        of_tokens = -torch.minimum(ratio * advantage, clipped * advantage)
        if objective.entropy:
            entropy = -(distribution.exp() * distribution).sum(1)
            of_tokens = of_tokens - objective.entropy * entropy
        if objective.kl:
            with torch.no_grad():
                of_reference = distributions(reference, rollouts, i).gather(1, tokens)[:, 0]
            gap = of_reference - logprobs
            of_tokens = of_tokens + objective.kl * (gap.exp() - gap - 1)
        share = weight_of_a_token(rollouts, i, objective.loss_aggregation)
        loss = loss + weights[i] * share * of_tokens.sum()
    return loss


def formula_gradient(policy, reference, rollouts, advantages, weights, objective):
    """The loss and its gradient, (parameters,) float64."""
    model = in_float64(policy)
    frozen = in_float64(reference)
    loss = formula_loss(model, frozen, rollouts, advantages, weights, objective)
    model.zero_grad()
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


# The same by `grpo_step`


def step_gradient(policy, rollouts, advantages, objective=Objective(), reference=None, **options):
    optimizer = Gradients(policy)
    options = {"length": LENGTH, "max_grad_norm": 1e9, "temperature": TEMPERATURE, **options}
    if not objective.kl:
        reference = None
    stats = grpo_step(
        policy, optimizer, rollouts, advantages, objective, reference=reference, **options
    )
    return stats, optimizer.seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rollouts", "tokens"])
@pytest.mark.parametrize("further", [{}, {"kl": 0.2, "entropy": 0.1}], ids=["plain", "kl-entropy"])
@pytest.mark.parametrize("importance_sampling", IMPORTANCE_SAMPLING)
@pytest.mark.parametrize("aggregation", LOSS_AGGREGATION)
def test_loss_and_gradient_are_those_of_the_formulas(
    policy, reference, rollouts, aggregation, importance_sampling, further, kind
):
    # Sequences differ less than tokens, so their range is narrower; the clip acts in both.
    clip = (0.2, 0.28) if importance_sampling == "token" else (0.05, 0.08)
    objective = Objective(clip, importance_sampling, aggregation, **further)
    advantages = ADVANTAGES if kind == "rollouts" else token_advantages(rollouts)
    stats, gradient = step_gradient(
        policy, rollouts, advantages, objective, reference, weights=WEIGHTS, micro_tokens=40
    )
    loss, expected = formula_gradient(policy, reference, rollouts, advantages, WEIGHTS, objective)
    assert stats.loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert (gradient.double() - expected).norm() < 1e-4 * expected.norm()
    assert np.nanmax(stats.clip_ratio) > 0


@pytest.mark.parametrize("micro_tokens", [1, 40, 10**6])
@pytest.mark.parametrize("objective", [Objective(), Objective(kl=0.1, entropy=0.1)], ids=repr)
def test_weights_of_one_are_no_weights_bit_for_bit(
    policy, reference, rollouts, objective, micro_tokens
):
    options = {"reference": reference, "micro_tokens": micro_tokens}
    plain, gradient = step_gradient(policy, rollouts, ADVANTAGES, objective, **options)
    ones = np.ones(len(rollouts))
    same, again = step_gradient(policy, rollouts, ADVANTAGES, objective, weights=ones, **options)
    assert torch.equal(gradient, again)
    assert plain.loss == same.loss
    assert np.array_equal(plain.clip_ratio, same.clip_ratio)


def test_equal_advantages_of_tokens_are_one_of_the_rollout_bit_for_bit(policy, rollouts):
    spread_out = np.repeat(ADVANTAGES, rollouts.lengths)
    of_tokens = Ragged(spread_out, rollouts.response.offsets)
    plain, gradient = step_gradient(policy, rollouts, ADVANTAGES)
    same, again = step_gradient(policy, rollouts, of_tokens)
    assert torch.equal(gradient, again)
    assert plain.loss == same.loss


def test_twice_the_weights_are_twice_the_gradient(policy, rollouts):
    once, gradient = step_gradient(policy, rollouts, ADVANTAGES, weights=WEIGHTS)
    twice, doubled = step_gradient(policy, rollouts, ADVANTAGES, weights=2 * WEIGHTS)
    assert torch.equal(doubled, 2 * gradient)
    assert twice.loss == pytest.approx(2 * once.loss)


@pytest.mark.parametrize("objective", [Objective(), Objective(kl=0.1, entropy=0.1)], ids=repr)
def test_rows_of_weight_zero_are_not_computed_but_count_in_the_averages(
    policy, reference, rollouts, objective
):
    stats, gradient = step_gradient(
        policy, rollouts, ADVANTAGES, objective, reference, weights=WEIGHTS
    )
    computed = np.isfinite(stats.clip_ratio)
    assert computed.tolist() == (WEIGHTS > 0).tolist()
    assert stats.rollouts == 6
    assert stats.tokens == rollouts.lengths[WEIGHTS > 0].sum()

    # Left out of the batch altogether, the other rows would weigh more.
    kept = np.flatnonzero(WEIGHTS)
    _, of_kept = step_gradient(
        policy, rollouts.take(kept), ADVANTAGES[kept], objective, reference, weights=WEIGHTS[kept]
    )
    share = rollouts.lengths[kept].sum() / rollouts.lengths.sum()
    torch.testing.assert_close(gradient, of_kept * float(share), rtol=1e-4, atol=1e-6)


def test_without_any_weight_nothing_is_computed(policy, rollouts):
    stats, gradient = step_gradient(policy, rollouts, ADVANTAGES, weights=np.zeros(8))
    assert stats.rollouts == 0
    assert stats.loss == 0
    assert not gradient.any()


# In a run


@dataclass(frozen=True)
class FirstHalfAtHalfWeight(Slot):
    """Keeps the even rows: those of the first problems at half the weight, the last at none."""

    needs = frozenset({"row_weights"})

    def select(self, rollouts, context):
        rows = np.arange(0, len(rollouts), 2)
        weights = np.where(rows < len(rollouts) // 2, 0.5, 1.0)
        weights[-1] = 0.0
        return Selection(rows, weights=weights)


@dataclass(frozen=True)
class Fading(Slot):
    """GRPO's advantage, less for every further token."""

    needs = frozenset({"token_advantages"})

    def __call__(self, rollouts, context):
        of_rollouts = wb.advantages.group_normalized(rollouts.reward, rollouts.group)
        rows = [a * 0.5 ** np.arange(n) for a, n in zip(of_rollouts, rollouts.lengths)]
        return Ragged.of(rows, np.float64)


def test_a_run_records_weights_and_means_of_advantages(lab, tmp_path):
    method = wb.methods.grpo(4).but(selector=FirstHalfAtHalfWeight(), advantage=Fading())
    options = {"problems_per_round": 4, "mini_batches": 2, "evaluate_every": 0}
    run = wb.Run(lab, method, out=tmp_path, **options)
    row = go(run, 1)[0]
    rollouts = run.record.rollouts()
    selected = rollouts["selected"]
    assert selected.tolist() == [True, False] * 8
    assert rollouts["weight"][selected].tolist() == [0.5] * 4 + [1.0] * 3 + [0.0]
    assert rollouts["weight"][~selected].isna().all()
    assert rollouts["advantage"][~selected].isna().all()

    plain = wb.advantages.group_normalized(rollouts["reward"], rollouts["problem"])
    faded = plain * (2 - 2 * 0.5 ** rollouts["length"]) / rollouts["length"]
    assert rollouts["advantage"][selected].tolist() == pytest.approx(faded[selected].tolist())
    expected = selected & (rollouts["weight"] > 0) & (plain != 0)
    assert rollouts["trained"].tolist() == expected.tolist()
    assert row["trained"] == expected.sum() > 0
    assert row["steps"] == 2
