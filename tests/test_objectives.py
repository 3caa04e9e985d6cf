"""Losses by hand, and their invariants."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.objectives import Objective, kl_estimate, policy_loss, surrogate, token_weights

# two rollouts: three tokens and one token
MASK = torch.tensor([[True, True, True], [True, False, False]])
ADVANTAGES = torch.tensor([1.0, -2.0])
OLD_LOGPROBS = torch.zeros(2, 3)


def loss(ratios, **options):
    return policy_loss(torch.tensor(ratios).log(), OLD_LOGPROBS, ADVANTAGES, MASK, **options).item()


@pytest.mark.parametrize(
    "mean, expected",
    [
        ("rollout", -(1 - 2) / 2),  # each rollout's mean is its advantage
        ("token", -(3 * 1 - 2) / 4),
        ("constant", -(3 * 1 - 2) / (2 * 3)),
    ],
)
def test_means_on_policy(mean, expected):
    assert loss([[1.0] * 3] * 2, loss_aggregation=mean) == pytest.approx(expected)


def test_clipping_by_hand():
    # A > 0: 1.5 is bounded at 1.28, 0.5 is not; A < 0: 0.5 is bounded at 0.8
    ratios = [[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]]
    assert loss(ratios, loss_aggregation="token") == pytest.approx(-(1.28 + 0.5 + 1.0 - 2 * 0.8) / 4)
    _, clipped = surrogate(
        torch.tensor(ratios).log(), OLD_LOGPROBS, ADVANTAGES, MASK, clip=(0.2, 0.28), importance_sampling="token"
    )
    assert clipped.tolist() == [[True, False, False], [True, False, False]]


def test_sequence_ratio_is_the_geometric_mean():
    ratios = [[1.1, 1.2, 1.0], [0.9, 1.0, 1.0]]
    s1, s2 = (1.1 * 1.2) ** (1 / 3), 0.9
    assert loss(ratios, importance_sampling="sequence", loss_aggregation="rollout") == pytest.approx(
        -(s1 - 2 * s2) / 2, rel=1e-5
    )


def test_sequence_gradient_is_shared_by_its_tokens():
    logprobs = torch.tensor([[0.05, 0.1, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    policy_loss(logprobs, OLD_LOGPROBS, ADVANTAGES, MASK, importance_sampling="sequence", loss_aggregation="rollout").backward()
    expected = -math.exp(0.05) / 3 / 2  # s * A / |o| / R
    assert logprobs.grad[0].tolist() == pytest.approx([expected] * 3, rel=1e-5)
    assert logprobs.grad[1].tolist() == [pytest.approx(1.0), 0.0, 0.0]


@given(
    st.sampled_from(["token", "sequence"]),
    st.sampled_from(["rollout", "token", "constant"]),
    st.integers(0, 99),
)
def test_padding_never_matters(ratio, mean, seed):
    draw = torch.Generator().manual_seed(seed)
    logprobs, old_logprobs = (
        torch.randn(2, 3, generator=draw) - 2,
        torch.randn(2, 3, generator=draw) - 2,
    )
    options = dict(importance_sampling=ratio, loss_aggregation=mean, length=3)
    garbage = torch.where(MASK, logprobs, torch.full_like(logprobs, 1e4))
    wide = [
        torch.nn.functional.pad(t, (0, 2), value=v)
        for t, v in ((garbage, 7.0), (old_logprobs, -9.0), (MASK, False))
    ]
    plain = policy_loss(logprobs, old_logprobs, ADVANTAGES, MASK, **options)
    assert policy_loss(wide[0], wide[1], ADVANTAGES, wide[2], **options).item() == pytest.approx(
        plain.item(), rel=1e-6
    )


@pytest.mark.parametrize("mean", ["rollout", "token"])
def test_weights_sum_to_one(mean):
    assert token_weights(MASK, mean, 3).sum().item() == pytest.approx(1)


def test_kl_estimate_is_zero_at_the_reference_and_positive_elsewhere():
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.0])).item() == 0
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-2.0])).item() == pytest.approx(
        math.exp(-1)
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ratio": "word"}, "importance_sampling='word': allowed are token, sequence"),
        ({"mean": "median"}, "loss_aggregation='median'"),
        ({"clip": (0.2,)}, "clip"),
        ({"clip": (-0.1, 0.2)}, "clip"),
        ({"kl": -1.0}, "kl=-1.0"),
        ({"entropy": float("nan")}, "entropy"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        Objective(**options)
