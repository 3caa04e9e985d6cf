"""One update: equal to the plain computation, however it is split."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import Gradients, hand_made, tiny_policy
from contract import LORA

from workbench.grpo import NonFinite, grpo_step, mark
from workbench.objectives import Objective, policy_loss
from workbench.policies import Sampling
from workbench.policies.batching import micro_batches, mini_batches
from workbench.problems import arithmetic
from workbench.rollouts import Ragged
from workbench.rules.advantages import group_normalized

ROLLOUTS = hand_made([1, 0, 0, 1, 1, 1, 0, 0, 1, 0], list("aaabbbcccc"))
ADVANTAGES = group_normalized(ROLLOUTS.reward, ROLLOUTS.problem)


def gradient(policy, objective, **options):
    keeper = Gradients(policy)
    options = {"max_grad_norm": 1e9, **options}
    stats = grpo_step(policy, keeper, ROLLOUTS, ADVANTAGES, objective, **options)
    return keeper.seen, stats


def plain_gradient(policy, objective):
    """Everything at once, by autograd."""
    mask = torch.as_tensor(ROLLOUTS.response.mask())
    logprobs = policy.logprobs(ROLLOUTS)
    loss = policy_loss(
        logprobs,
        torch.as_tensor(ROLLOUTS.old_logprobs.padded()),
        torch.as_tensor(ADVANTAGES, dtype=torch.float32),
        mask,
        clip=objective.clip,
        importance_sampling=objective.importance_sampling,
        loss_aggregation=objective.loss_aggregation,
        length=objective.length,
        groups=ROLLOUTS.group,
    )
    policy.model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()]), loss.item()


OBJECTIVES = [
    Objective(),
    Objective(loss_aggregation="rollout"),
    Objective(importance_sampling="sequence", loss_aggregation="rollout", clip=(9e-1, 9.0)),
    Objective(loss_aggregation="group"),
    Objective(loss_aggregation="constant", length=12),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("micro_tokens", [1, 40, 10**6])
def test_gradient_and_loss_do_not_depend_on_the_split(policy, objective, micro_tokens):
    expected, loss = plain_gradient(policy, objective)
    seen, stats = gradient(policy, objective, micro_tokens=micro_tokens)
    assert stats.loss == pytest.approx(loss, abs=1e-6)
    assert torch.allclose(seen, expected, atol=1e-5 * expected.abs().max().item(), rtol=1e-4)
    assert stats.gradient_norm == pytest.approx(expected.norm().item(), rel=1e-4)


@pytest.mark.parametrize("micro_tokens", [200, 10**6])
def test_gradient_is_that_of_the_plain_computation(policy, micro_tokens):
    """Of sampled responses: no row left out, all padded on the left, logits of every position."""
    prompts = [problem.prompt for problem in arithmetic(6, seed=2)]
    rollouts = policy.generate(prompts, [4] * 6, Sampling(max_new_tokens=24), seed=1)
    rewards = [1.0, 0, 0, 1] * 3 + [0.0] * 4 + [0.0, 1, 1, 1] * 2
    advantages = group_normalized(rewards, rollouts.problem)
    assert len(set(rollouts.prompt.lengths)) > 1
    assert len(set(rollouts.lengths)) > 1
    with torch.no_grad():  # so that ratios are other than 1
        for p in policy.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))

    whole = Ragged.of([[*rollouts.prompt[i], *rollouts.response[i]] for i in range(24)], np.int64)
    ids = torch.as_tensor(whole.padded(side="left"))
    real = torch.as_tensor(whole.mask()[:, ::-1].copy())
    width = rollouts.lengths.max()
    positions = (real.cumsum(1) - 1).clamp(min=0)
    logits = policy.model(input_ids=ids, attention_mask=real.long(), position_ids=positions).logits
    logprobs = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, -width:, 0]
    mask = torch.as_tensor(rollouts.response.mask()[:, ::-1].copy())
    old_logprobs = torch.as_tensor(rollouts.old_logprobs.padded(side="left"))
    policy_loss(
        logprobs, old_logprobs, torch.as_tensor(advantages, dtype=torch.float32), mask
    ).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    keeper = Gradients(policy)
    stats = grpo_step(
        policy, keeper, rollouts, advantages, max_grad_norm=1e9, micro_tokens=micro_tokens
    )
    assert stats.rollouts == 20
    assert np.nanmax(stats.clip_ratio) > 0
    assert (keeper.seen - expected).norm() <= 1e-5 * expected.norm()


def test_rows_without_advantage_are_not_computed(policy):
    _, stats = gradient(policy, Objective())
    assert stats.rollouts == int((ADVANTAGES != 0).sum()) == 7
    assert np.isnan(stats.clip_ratio[ADVANTAGES == 0]).all()
    assert np.isfinite(stats.entropy[ADVANTAGES != 0]).all()
    _, stats = gradient(policy, Objective(entropy=0.01))
    assert stats.rollouts == 10
    assert np.isfinite(stats.entropy).all()


def test_kl_pulls_back_to_the_reference(policy):
    reference = tiny_policy()
    with pytest.raises(ValueError, match=r"kl=0\.1"):
        gradient(policy, Objective(kl=0.1))
    _, stats = gradient(policy, Objective(kl=0.1), reference=reference)
    assert stats.kl == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.02 * torch.randn_like(p))
    seen, stats = gradient(policy, Objective(kl=0.1), reference=reference)
    without, _ = gradient(policy, Objective())
    # The mean over tokens of exp(d) - d - 1, where d is the reference's log-probability minus the
    # policy's.
    real = torch.as_tensor(ROLLOUTS.response.mask())
    with torch.no_grad():
        ahead = (reference.logprobs(ROLLOUTS) - policy.logprobs(ROLLOUTS))[real]
    by_hand = (ahead.exp() - ahead - 1).mean().item()
    assert stats.kl == pytest.approx(by_hand, rel=1e-4)
    assert not torch.allclose(seen, without)


@pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed (pip install peft)")
@pytest.mark.parametrize("options", [{}, {"lora": LORA}], ids=["full", "lora"])
def test_forward_passes_without_a_gradient_are_in_evaluation_mode(options):
    """Those of the reference and of the covariances: dropout would disturb both."""
    policy = tiny_policy(**options)
    policy.model.train()
    reference = policy.frozen()
    seen = []

    def note(decoder, *_):
        seen.append((torch.is_grad_enabled(), decoder.training))

    policy.decoder.register_forward_hook(note)
    if not options:
        reference.decoder.register_forward_hook(note)
    gradient(policy, Objective(surrogate="kl_cov", kl=0.1), reference=reference, micro_tokens=40)
    assert len(seen) > 3
    assert set(seen) == {(True, True), (False, False)}


@pytest.mark.parametrize(
    "correction", ["truncate", "mask", "off", "sequence_truncate", "sequence_mask", None]
)
def test_the_gap_between_sampler_and_trainer_is_corrected(policy, correction):
    """Loss, gradient and statistics against a computation in float64."""
    noise = np.random.default_rng(0).normal(size=len(ROLLOUTS.old_logprobs.values))
    if correction is None or correction.startswith("sequence"):
        noise /= 3  # sums over the tokens of a response should not all be large
    sampled = ROLLOUTS.old_logprobs.values + noise.astype(np.float32)
    sampled = Ragged(sampled, ROLLOUTS.old_logprobs.offsets)
    objective = Objective(sampler_correction=correction, sampler_cap=1.5)
    seen, stats = gradient(policy, objective, sampler_logprobs=sampled)

    mask = torch.as_tensor(ROLLOUTS.response.mask())
    old = torch.as_tensor(ROLLOUTS.old_logprobs.padded()).double()
    difference = torch.where(mask, old - torch.as_tensor(sampled.padded()).double(), 0.0)
    kind, cap = (correction, 1.5) if correction else ("sequence_mask", 3.0)
    if kind.startswith("sequence"):
        weight = difference.sum(1, keepdim=True).expand(mask.shape).exp()
    else:
        weight = difference.exp()
    above = mask & (weight > cap)
    assert 0 < above.sum() < mask.sum()
    corrected = {
        "truncate": torch.where(above, cap, weight),
        "mask": torch.where(above, 0.0, weight),
        "off": torch.ones_like(weight),
    }[kind.removeprefix("sequence_")]
    ratio = torch.where(mask, policy.logprobs(ROLLOUTS).double() - old, 0.0).exp()
    advantages = torch.as_tensor(ADVANTAGES)[:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    loss = -(gain * corrected * mask).sum() / mask.sum()
    policy.model.zero_grad()
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])

    assert stats.loss == pytest.approx(loss.item(), abs=1e-6)
    assert (seen - expected).norm() <= 1e-4 * expected.norm()
    computed = ADVANTAGES != 0
    shares = (above.sum(1) / mask.sum(1)).numpy()
    assert np.allclose(stats.sampler_above[computed], shares[computed])
    gaps = Ragged(np.abs(noise), sampled.offsets).means()
    assert np.allclose(stats.sampler_gap[computed], gaps[computed], atol=1e-5)
    assert np.isnan(stats.sampler_gap[~computed]).all()


@pytest.mark.parametrize("options", [{"sampler_correction": "clip"}, {"sampler_cap": 0.5}])
def test_unknown_corrections_are_refused(options):
    with pytest.raises(ValueError, match="".join(options)):
        Objective(**options)


def test_gradient_clipping():
    policy = tiny_policy()
    keeper = Gradients(policy)
    stats = grpo_step(policy, keeper, ROLLOUTS, ADVANTAGES, max_grad_norm=0.01)
    assert keeper.seen.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert stats.gradient_norm > 0.01


def test_a_step_makes_good_responses_likelier(policy):
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    with torch.no_grad():
        before = policy.logprobs(ROLLOUTS)
    rollouts = ROLLOUTS.assign(old_logprobs=Ragged.of_padded(before.numpy(), ROLLOUTS.lengths))
    grpo_step(policy, optimizer, rollouts, ADVANTAGES)
    with torch.no_grad():
        gain = ((policy.logprobs(rollouts) - before).sum(1).numpy() * ADVANTAGES).sum()
    assert gain > 0


def test_logprob_diff_and_clip_ratio_see_another_policy(policy):
    """The hand-made log-probabilities are those of no policy at all."""
    _, stats = gradient(policy, Objective())
    assert np.nanmin(stats.logprob_diff) > 0.1
    assert np.nanmax(stats.clip_ratio) > 0


def test_non_finite_leaves_the_weights_alone(policy):
    before = policy.state_dict()
    optimizer = torch.optim.AdamW(policy.parameters())
    minus_infinity = np.full_like(ROLLOUTS.old_logprobs.values, -np.inf)
    impossible = Ragged(minus_infinity, ROLLOUTS.old_logprobs.offsets)
    broken = ROLLOUTS.assign(old_logprobs=impossible)
    unbounded = Objective(clip=(1.0, float("inf")))
    with pytest.raises(NonFinite, match=r"the loss of .* rollouts is") as caught:
        grpo_step(policy, optimizer, broken, ADVANTAGES, unbounded)
    assert len(caught.value.rollouts) == 7
    with pytest.raises(NonFinite, match="advantages of 1 rollouts are not finite") as caught:
        grpo_step(policy, optimizer, ROLLOUTS, np.where(np.arange(10) == 3, np.nan, ADVANTAGES))
    assert set(caught.value.rollouts.problem) == {ROLLOUTS.problem[3]}
    assert all(torch.equal(a, b) for a, b in zip(before.values(), policy.state_dict().values()))


def test_no_gradient_anywhere_is_a_step_with_none(policy):
    keeper = Gradients(policy)
    stats = grpo_step(policy, keeper, ROLLOUTS, np.zeros(10))
    assert stats.rollouts == 0
    assert stats.gradient_norm == 0
    assert not keeper.seen.any()


def test_micro_batches_stay_within_the_budget():
    parts = list(micro_batches(ROLLOUTS, np.arange(10), 30))
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    lengths = ROLLOUTS.prompt.lengths + ROLLOUTS.lengths
    assert all(len(part) == 1 or len(part) * lengths[part].max() <= 30 for part in parts)


def test_mini_batches_split_by_groups():
    parts = mini_batches(ROLLOUTS, 2, np.random.default_rng(0))
    groups = [set(ROLLOUTS.problem[part]) for part in parts]
    assert not groups[0] & groups[1]
    assert groups[0] | groups[1] == {"a", "b", "c"}
    assert len(mini_batches(ROLLOUTS, 4, np.random.default_rng(0))) == 3, (
        "fewer groups make fewer steps"
    )
    assert mini_batches(ROLLOUTS.take([]), 2, np.random.default_rng(0)) == []


@pytest.mark.parametrize("seed", range(8))
def test_problems_of_different_sizes_do_not_leave_a_mini_batch_empty(seed):
    # Whichever comes first, the middles of 2 and of 6 rows lie in different halves of the 8.
    parts = mini_batches(hand_made([0] * 8, list("aabbbbbb")), 2, np.random.default_rng(seed))
    assert sorted(len(part) for part in parts) == [2, 6]


@pytest.mark.parametrize("size, sizes", [(3, [4, 3, 3]), (4, [5, 5]), (6, [10]), (11, [10])])
def test_mini_batches_of_a_size_have_no_small_remainder(size, sizes):
    parts = mini_batches(ROLLOUTS, 1, np.random.default_rng(0), size)
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts)) == list(range(10))


@pytest.mark.parametrize(
    "options",
    [
        {"advantages": np.zeros(3)},
        {"advantages": Ragged.of([[1.0]] * 10, np.float64)},
        {"weights": np.ones(3)},
        {"weights": -np.ones(10)},
        {"weights": np.full(10, np.nan)},
        {"sampler_logprobs": Ragged.of([[-1.0]] * 10, np.float32)},
        {"max_grad_norm": 0.0},
    ],
)
def test_arrays_of_another_shape_or_range_are_named(options):
    with pytest.raises(ValueError, match="".join(options)):
        grpo_step(None, None, ROLLOUTS, **{"advantages": np.zeros(10), **options})


@pytest.mark.parametrize("old", [[], [-12.0]], ids=["none", "of the whole response"])
def test_old_logprobs_that_are_not_of_the_tokens_are_named(policy, old):
    """A single number would silently stand for all tokens of its response."""
    table = ROLLOUTS.assign(old_logprobs=Ragged.of([old] * 10, np.float32))
    with pytest.raises(ValueError, match="old_logprobs"):
        grpo_step(policy, Gradients(policy), table, ADVANTAGES)


@pytest.mark.parametrize("correction", [None, "sequence_truncate"])
def test_a_response_that_its_sampler_hardly_knew_stops_no_step(policy, correction):
    """Its weight is beyond float32, also at its padding."""
    assert ROLLOUTS.lengths.min() < ROLLOUTS.lengths.max()
    objective = Objective(sampler_correction=correction)
    old = policy.rescored(ROLLOUTS).old_logprobs
    table = ROLLOUTS.assign(old_logprobs=old)
    far = Ragged(old.values - 200, old.offsets)
    stats = grpo_step(policy, Gradients(policy), table, ADVANTAGES, objective, sampler_logprobs=far)
    assert np.isfinite(stats.gradient_norm)
    assert (stats.gradient_norm == 0) == (correction is None)


def test_a_row_without_weight_advantage_or_gradient_is_not_trained():
    table = ROLLOUTS.assign(gradient=np.arange(10) != 3, uses=np.zeros(10, int))
    weights = np.array([0.0, 2.0, 1.0, 1.0])
    found = mark(table, np.arange(4), np.array([1.0, -1.0, 0.0, 1.0]), [], 1, weights)
    assert np.flatnonzero(found["selected"]).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(found["trained"]).tolist() == [1]
