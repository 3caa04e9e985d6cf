"""Losses by hand, and their invariants."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.objectives import (
    IMPORTANCE_SAMPLING,
    LOSS_AGGREGATION,
    Objective,
    gains,
    kl_estimate,
    policy_loss,
    token_weights,
)

# Two rollouts, of three tokens and of one token.
MASK = torch.tensor([[True, True, True], [True, False, False]])
ADVANTAGES = torch.tensor([1.0, -2.0])
OLD_LOGPROBS = torch.zeros(2, 3)


def loss(ratios, **options):
    return policy_loss(torch.tensor(ratios).log(), OLD_LOGPROBS, ADVANTAGES, MASK, **options).item()


@pytest.mark.parametrize(
    "aggregation, expected",
    [
        ("rollout", -(1 - 2) / 2),  # each rollout's mean is its advantage
        ("token", -(3 * 1 - 2) / 4),
        ("constant", -(3 * 1 - 2) / (2 * 3)),
    ],
)
def test_averages_on_policy(aggregation, expected):
    assert loss([[1.0] * 3] * 2, loss_aggregation=aggregation) == pytest.approx(expected)


def test_the_average_over_groups_weighs_every_group_alike():
    """AERO, equations 2 and 8: three rollouts of one token; those of a share the weight of b."""
    mask = torch.ones(3, 1, dtype=torch.bool)
    weights = token_weights(mask, "group", groups=["a", "b", "a"])
    assert weights[:, 0].tolist() == pytest.approx([0.25, 0.5, 0.25])
    with pytest.raises(ValueError, match="groups=None: loss_aggregation='group' needs the group"):
        token_weights(mask, "group")
    with pytest.raises(ValueError, match="length=None: loss_aggregation='constant' needs"):
        token_weights(mask, "constant")


def test_clipping_by_hand():
    # A > 0: 1.5 is bounded at 1.28 and 0.5 is not. A < 0: 0.5 is bounded at 0.8.
    ratios = [[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]]
    assert loss(ratios, loss_aggregation="token") == pytest.approx(
        -(1.28 + 0.5 + 1.0 - 2 * 0.8) / 4
    )
    objective = Objective((0.2, 0.28), "token")
    _, clipped = gains(objective, torch.tensor(ratios).log(), OLD_LOGPROBS, ADVANTAGES, MASK)
    assert clipped.tolist() == [[True, False, False], [True, False, False]]


def test_sequence_ratio_is_the_geometric_mean():
    ratios = [[1.1, 1.2, 1.0], [0.9, 1.0, 1.0]]
    first = (1.1 * 1.2) ** (1 / 3)
    second = 0.9
    assert loss(
        ratios, importance_sampling="sequence", loss_aggregation="rollout"
    ) == pytest.approx(-(first - 2 * second) / 2, rel=1e-5)


def test_sequence_gradient_is_shared_by_its_tokens():
    logprobs = torch.tensor([[0.05, 0.1, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    policy_loss(
        logprobs,
        OLD_LOGPROBS,
        ADVANTAGES,
        MASK,
        importance_sampling="sequence",
        loss_aggregation="rollout",
    ).backward()
    expected = -math.exp(0.05) / 3 / 2  # s * A / |o| / R
    assert logprobs.grad[0].tolist() == pytest.approx([expected] * 3, rel=1e-5)
    assert logprobs.grad[1].tolist() == [pytest.approx(1.0), 0.0, 0.0]


def test_on_policy_gspo_has_the_gradient_of_grpo():
    """All ratios are 1, so where they are taken makes no difference with the mean over rollouts."""
    gradients = []
    for ratio, clip in (("token", (0.2, 0.28)), ("sequence", (3e-4, 4e-4))):
        new = torch.linspace(-2, -1, 6).reshape(2, 3).requires_grad_()
        policy_loss(
            new,
            new.detach(),
            ADVANTAGES,
            MASK,
            clip=clip,
            importance_sampling=ratio,
            loss_aggregation="rollout",
        ).backward()
        gradients.append(new.grad)
    assert torch.allclose(*gradients)


@given(st.sampled_from(IMPORTANCE_SAMPLING), st.sampled_from(LOSS_AGGREGATION), st.integers(0, 99))
def test_padding_never_matters(importance_sampling, aggregation, seed):
    draw = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(2, 3, generator=draw) - 2
    old_logprobs = torch.randn(2, 3, generator=draw) - 2
    options = {
        "importance_sampling": importance_sampling,
        "loss_aggregation": aggregation,
        "length": 3,
        "groups": ["a", "b"],
    }
    plain = policy_loss(logprobs, old_logprobs, ADVANTAGES, MASK, **options)

    garbage = torch.where(MASK, logprobs, torch.full_like(logprobs, 1e4))
    padded = policy_loss(
        torch.nn.functional.pad(garbage, (0, 2), value=7.0),
        torch.nn.functional.pad(old_logprobs, (0, 2), value=-9.0),
        ADVANTAGES,
        torch.nn.functional.pad(MASK, (0, 2), value=False),
        **options,
    )
    assert padded.item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.parametrize("aggregation", ["rollout", "token", "group"])
def test_weights_sum_to_one(aggregation):
    weights = token_weights(MASK, aggregation, 3, groups=["a", "b"])
    assert weights.sum().item() == pytest.approx(1)


def test_advantages_of_tokens():
    """One number for each token; equal numbers are the same as one for the rollout."""
    per_token = ADVANTAGES[:, None].expand(2, 3)
    logprobs = torch.log(torch.tensor([[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]]))
    of_rollouts = policy_loss(logprobs, OLD_LOGPROBS, ADVANTAGES, MASK)
    assert policy_loss(logprobs, OLD_LOGPROBS, per_token, MASK).item() == of_rollouts.item()

    single = torch.zeros(2, 3)
    single[0, 1] = 4.0
    # Only one token counts, at a ratio of 0.5, and there are four tokens.
    assert policy_loss(logprobs, OLD_LOGPROBS, single, MASK).item() == pytest.approx(-0.5)


def test_kl_estimate_is_zero_at_the_reference_and_positive_elsewhere():
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.0])).item() == 0
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-2.0])).item() == pytest.approx(
        math.exp(-1)
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"importance_sampling": "word"}, "importance_sampling="),
        ({"loss_aggregation": "rollouts"}, "loss_aggregation="),
        ({"clip": (0.2,)}, "clip"),
        ({"clip": (-0.1, 0.2)}, "clip"),
        ({"clip": (1.1, 0.2)}, "clip"),
        ({"kl": -1.0}, "kl=-1.0"),
        ({"entropy": float("nan")}, "entropy"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        Objective(**options)


@pytest.mark.parametrize(
    "option", [{"kl": 0.1}, {"entropy": 0.1}, {"sampler_correction": "mask"}, {"sampler_cap": 3.0}]
)
def test_the_loss_alone_refuses_what_it_would_leave_out(option):
    logprobs = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=f"^{next(iter(option))}="):
        policy_loss(logprobs, logprobs, torch.ones(1), torch.ones(1, 2, dtype=bool), **option)
