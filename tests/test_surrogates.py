"""The surrogates beside the clipped one: values by hand, and gradients against float64 formulas.

Expected values are worked out from the papers' formulas and from TRL's and verl's code.
"""

import math

import numpy as np
import pytest
import torch
from conftest import Gradients, hand_made
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.grpo import grpo_step
from workbench.objectives import (
    SURROGATES,
    Objective,
    gains,
    policy_loss,
    token_weights,
    tokens_by_covariance,
)


def of_ratios(ratios, advantage, **options):
    """Gain of each of the tokens of one response, and its slope in the log-probability."""
    old = torch.full((1, len(ratios)), -2.0, dtype=torch.float64)
    logprobs = (old + torch.tensor([ratios], dtype=torch.float64).log()).requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    mask = torch.ones(1, len(ratios), dtype=torch.bool)
    gain, bounded = gains(Objective(**options), logprobs, old, advantages, mask)
    gain.sum().backward()
    return gain[0].detach().numpy(), logprobs.grad[0].numpy(), bounded[0].tolist()


class TestDualClip:
    def test_a_negative_advantage_loses_at_most_three_times_itself(self):
        ratios = [0.5, 1.5, 3.5, 12.0]
        gain, slope, bounded = of_ratios(ratios, -1.0, clip=(0.2, 0.2), dual_clip=3.0)
        assert -gain == pytest.approx([0.8, 1.5, 3.0, 3.0])
        # Only the ratio of 1.5 is within all bounds, and its slope is that of -r.
        assert slope == pytest.approx([0, -1.5, 0, 0])
        assert bounded == [True, False, True, True]

    def test_without_it_the_loss_grows_with_the_ratio(self):
        gain, slope, _ = of_ratios([3.5, 12.0], -1.0, clip=(0.2, 0.2))
        assert -gain == pytest.approx([3.5, 12.0])
        assert slope == pytest.approx([-3.5, -12.0])

    def test_a_positive_advantage_does_not_see_it(self):
        gain, _, _ = of_ratios([3.5], 1.0, clip=(0.2, 0.2), dual_clip=3.0)
        assert -gain == pytest.approx([-1.2])


class TestCispo:
    @pytest.mark.parametrize("clip, weight", [((0.2, 0.2), 1.2), ((1.0, 4.0), 3.0)])
    def test_the_bounded_ratio_is_a_weight_on_the_log_probability(self, clip, weight):
        """Ratio 3: verl's bounds give 1.2, TRL's recommended bound of 5 gives 3."""
        gain, slope, _ = of_ratios([3.0], 2.0, clip=clip, surrogate="cispo")
        assert gain == pytest.approx([weight * 2.0 * (math.log(3) - 2)])
        assert slope == pytest.approx([weight * 2.0])

    def test_every_token_keeps_a_gradient(self):
        _, slope, bounded = of_ratios([0.1, 1, 50], 1.0, clip=(0.2, 0.2), surrogate="cispo")
        assert slope == pytest.approx([0.8, 1.0, 1.2])
        assert bounded == [True, False, True]


class TestSapo:
    def test_positive_advantage(self):
        ratios = np.array([0.5, 1.0, 1.5, 3.0])
        gain, slope, bounded = of_ratios(ratios.tolist(), 1.0, surrogate="sapo")
        assert gain == pytest.approx([1.5102, 2, 2.4898, 3.5232], abs=5e-5)
        # The slope in the ratio; that in the log-probability is the ratio times it.
        assert slope / ratios == pytest.approx([0.94, 1, 0.94, 0.42], abs=5e-5)
        assert bounded == [False] * 4

    def test_negative_advantage_is_gated_more_narrowly(self):
        ratios = np.array([1.5, 3.0])
        _, slope, _ = of_ratios(ratios.tolist(), -1.0, surrogate="sapo")
        assert -slope / ratios == pytest.approx([0.9341, 0.3888], abs=5e-5)


class TestGmpo:
    LOG_RATIOS = (1.0, -1.0, 0.1)

    @pytest.mark.parametrize(
        "advantage, kept, expected",
        [(1.0, (0.4, -1.0, 0.1), 0.8465), (-1.0, (1.0, -0.4, 0.1), 1.2628)],
    )
    def test_the_bound_is_on_the_side_that_would_raise_the_objective(
        self, advantage, kept, expected
    ):
        ratios = [math.exp(x) for x in self.LOG_RATIOS]
        gain, slope, bounded = of_ratios(ratios, advantage, clip=(0.4, 0.4), surrogate="gmpo")
        assert math.exp(sum(kept) / 3) == pytest.approx(expected, abs=5e-5)
        assert gain == pytest.approx([advantage * expected] * 3, abs=5e-5)
        is_kept = np.array(kept) == np.array(self.LOG_RATIOS)
        assert bounded == (~is_kept).tolist()
        # The sum over the three tokens is three times the response's term.
        assert slope == pytest.approx(advantage * is_kept * math.exp(sum(kept) / 3))

    def test_it_is_neither_the_sequence_ratio_nor_the_mean_of_ratios(self):
        ratios = [math.exp(x) for x in self.LOG_RATIOS]
        wide = {"clip": (1.0, math.inf)}
        gspo, _, _ = of_ratios(ratios, 1.0, importance_sampling="sequence", **wide)
        grpo, _, _ = of_ratios(ratios, 1.0, **wide)
        assert gspo == pytest.approx([1.0339] * 3, abs=5e-5)
        assert grpo.mean() == pytest.approx(1.3971, abs=5e-5)


class TestByCovariance:
    ADVANTAGES = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    LOGPROBS = torch.tensor([[-0.1], [-2.0], [-0.1], [-3.0]])
    MASK = torch.ones(4, 1, dtype=torch.bool)

    def chosen(self, surrogate, old_logprobs=None, **options):
        old_logprobs = self.LOGPROBS if old_logprobs is None else old_logprobs
        objective = Objective(surrogate=surrogate, **options)
        return tokens_by_covariance(
            objective, self.LOGPROBS, old_logprobs, self.ADVANTAGES, self.MASK
        )[:, 0].tolist()

    def test_kl_cov_takes_the_highest_covariance(self):
        """Covariances are 1.2, -0.7, -1.2 and 1.7."""
        assert self.chosen("kl_cov") == [False, False, False, True]
        assert self.chosen("kl_cov", covariance_share=0.5) == [True, False, False, True]

    def test_clip_cov_draws_one_of_those_within_the_range(self):
        drawn = set()
        for shift in range(20):
            old_logprobs = self.LOGPROBS + 1e-4 * shift
            chosen = self.chosen("clip_cov", old_logprobs)
            assert chosen == self.chosen("clip_cov", old_logprobs)  # the same draw again
            assert sum(chosen) == 1
            drawn.add(chosen.index(True))
        assert drawn == {0, 3}

    def test_clip_cov_leaves_out_tokens_that_are_clipped_or_out_of_range(self):
        assert self.chosen("clip_cov", covariance_range=(1.5, 5)) == [False] * 3 + [True]
        assert self.chosen("clip_cov", covariance_range=(2, 5)) == [False] * 4
        # Token 3 has a negative advantage and a ratio of 0.5, below 0.8.
        old_logprobs = self.LOGPROBS + torch.tensor([[0.0], [0.0], [0.0], [math.log(2)]])
        assert self.chosen("clip_cov", old_logprobs) == [True] + [False] * 3

    @pytest.mark.parametrize("share, tokens", [(2e-4, 4), (2e-3, 40)])
    def test_the_share_of_twenty_thousand_tokens(self, share, tokens):
        draw = torch.Generator().manual_seed(0)
        logprobs = torch.randn(200, 100, generator=draw) - 2
        advantages = torch.randn(200, generator=draw)
        mask = torch.ones(200, 100, dtype=torch.bool)
        for surrogate in ("kl_cov", "clip_cov"):
            objective = Objective(surrogate=surrogate, covariance_share=share)
            chosen = tokens_by_covariance(objective, logprobs, logprobs, advantages, mask)
            assert chosen.sum() == tokens

    def test_the_ratios_of_clip_cov_are_bounded_as_in_the_authors_scripts(self):
        assert wb.methods.clip_cov().objective.clip == (1.0, 1.0)
        assert wb.methods.clip_cov(clip=(0.2, 0.2)).objective.clip == (0.2, 0.2)

    def test_a_token_of_clip_cov_adds_nothing_and_has_no_gradient(self):
        logprobs = self.LOGPROBS.clone().requires_grad_()
        options = {"surrogate": "clip_cov", "covariance_range": (1.5, 5.0)}
        loss = policy_loss(logprobs, self.LOGPROBS, self.ADVANTAGES, self.MASK, **options)
        loss.backward()
        assert loss.item() == pytest.approx(-(1 + 1 - 1) / 4)
        assert logprobs.grad[:, 0].tolist() == pytest.approx([-0.25, -0.25, 0.25, 0.0])

    def test_a_token_of_kl_cov_pays_for_its_log_ratio(self):
        """Token 3, at ratio 1/2: -A r + 0.1 |log r|, and no ratio is clipped."""
        old_logprobs = self.LOGPROBS + torch.tensor([[-1.0], [0.0], [0.0], [math.log(2)]])
        logprobs = self.LOGPROBS.clone().requires_grad_()
        loss = policy_loss(logprobs, old_logprobs, self.ADVANTAGES, self.MASK, surrogate="kl_cov")
        loss.backward()
        expected = (-math.e - 1 + 1 + 0.5 + 0.1 * math.log(2)) / 4
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        slopes = [-math.e / 4, -1 / 4, 1 / 4, (0.5 - 0.1) / 4]
        assert logprobs.grad[:, 0].tolist() == pytest.approx(slopes, rel=1e-5)


@given(st.sampled_from(SURROGATES), st.sampled_from(["rollout", "token"]), st.integers(0, 99))
def test_on_policy_every_gradient_is_the_advantage_and_padding_never_matters(
    surrogate, aggregation, seed
):
    """At ratio 1 all surrogates have GRPO's gradient, where covariance chooses no token."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.randn(2, 3, generator=draw, dtype=torch.float64) - 2
    advantages = torch.randn(2, generator=draw, dtype=torch.float64)
    # No covariance exceeds this, so Clip-Cov chooses none; KL-Cov's penalty has weight 0.
    options = {"covariance_range": (1e6, 2e6), "covariance_kl": 0.0}

    def gradient(logprobs, old, mask):
        logprobs = logprobs.clone().requires_grad_()
        weights = token_weights(mask, aggregation)
        policy_loss(
            logprobs, old, advantages, mask, weights=weights, surrogate=surrogate, **options
        ).backward()
        return logprobs.grad

    expected = -advantages[:, None] * token_weights(mask, aggregation)
    seen = gradient(old, old, mask)
    assert torch.allclose(seen, expected.double())
    garbage = torch.where(mask, old, 1e4)
    padded = gradient(
        torch.nn.functional.pad(garbage, (0, 2), value=-float("inf")),
        torch.nn.functional.pad(old, (0, 2), value=3.0),
        torch.nn.functional.pad(mask, (0, 2), value=False),
    )
    assert torch.allclose(padded[:, :3], seen)
    assert not padded[:, 3:].any()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_step_does_not_depend_on_its_micro_batches(surrogate, policy):
    """The gradient of one batch, of many, and of `policy_loss` over the whole batch are equal."""
    rollouts = hand_made([1.0, 0, 0, 1, 0, 1], list("aaabbb"), lengths=[3, 5, 2, 7, 4, 1])
    advantages = np.array([1.5, -0.5, -1.0, 0.7, 0.0, -0.7])
    objective = Objective(surrogate=surrogate, covariance_share=0.3, covariance_range=(-9, 9))
    keeper = Gradients(policy)

    gradients = []
    for micro_tokens in (10_000, 1):
        grpo_step(
            policy,
            keeper,
            rollouts,
            advantages,
            objective,
            micro_tokens=micro_tokens,
            max_grad_norm=1e9,
        )
        gradients.append(keeper.seen)

    keeper.zero_grad()
    loss = policy_loss(
        policy.logprobs(rollouts),
        torch.as_tensor(rollouts.old_logprobs.padded()),
        torch.as_tensor(advantages).float(),
        torch.as_tensor(rollouts.response.mask()),
        surrogate=surrogate,
        covariance_share=0.3,
        covariance_range=(-9, 9),
    )
    loss.backward()
    whole = torch.cat([parameter.grad.flatten() for parameter in keeper.parameters])
    scale = whole.abs().max()
    assert scale > 0
    for gradient in gradients:
        assert (gradient - whole).abs().max() < 2e-3 * scale


@pytest.mark.parametrize(
    "options, message",
    [
        ({"surrogate": "clipped"}, "surrogate='clipped': .*did you mean 'clip'"),
        ({"dual_clip": 1.0}, "dual_clip=1.0: a number above 1"),
        ({"dual_clip": 3.0, "surrogate": "sapo"}, "surrogate='sapo' has no such bound"),
        ({"surrogate": "gmpo", "importance_sampling": "sequence"}, "has its own ratio"),
        ({"temperatures": (1.0, 0.0)}, "temperatures=.*above 0"),
        ({"temperatures": 1.0}, "temperatures=1.0: two numbers"),
        ({"covariance_range": (5, 1)}, "covariance_range="),
        ({"covariance_share": 2.0}, "covariance_share=2.0"),
        ({"covariance_kl": -1.0}, "covariance_kl=-1.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Objective(**options)


def test_trainers_refuse_surrogates_that_they_do_not_have_by_name():
    from workbench.trl.setup import arguments
    from workbench.verl.settings import check_clipped

    with pytest.raises(ValueError, match="surrogate='gmpo'"):
        arguments(wb.methods.gmpo())
    with pytest.raises(ValueError, match="surrogate='sapo'"):
        check_clipped(wb.methods.sapo().objective)
    dual = wb.methods.grpo(objective=wb.objectives.Objective(dual_clip=3.0))
    with pytest.raises(ValueError, match="dual_clip=3"):
        check_clipped(dual.objective)
    check_clipped(wb.methods.grpo().objective)


def test_the_papers_settings():
    cispo = wb.methods.cispo().objective
    assert (cispo.clip, cispo.loss_aggregation) == ((1.0, 4.0), "token")
    gmpo = wb.methods.gmpo()
    assert (gmpo.objective.clip, gmpo.allocator.n) == ((0.4, 0.4), 8)
    sapo = wb.methods.sapo().objective
    assert (sapo.temperatures, sapo.loss_aggregation) == ((1.0, 1.05), "rollout")
    clip_cov = wb.methods.clip_cov().objective
    assert (clip_cov.covariance_share, clip_cov.covariance_range) == (2e-4, (1.0, 5.0))
    kl_cov = wb.methods.kl_cov().objective
    assert (kl_cov.covariance_share, kl_cov.covariance_kl) == (2e-3, 1.0)
