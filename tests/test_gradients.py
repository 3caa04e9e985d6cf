"""Gradients of a policy small enough for paper, AERO's theorem, and updates of the tiny model."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_selectors import table

from papers import gradients
from papers.gradients import (
    balance,
    cosine,
    expected_norms,
    fidelity,
    fidelity_means,
    group_products,
    half_cosines,
    inner_products,
    lemma_balance,
    mixed_groups,
    norm_bound,
    norm_bounds,
    norms_by_balance,
    prior_norms,
    rollout_gradients,
    sampled_groups,
    squared_norm,
)
from workbench.objectives import policy_loss
from workbench.rollouts import Ragged, Rollouts
from workbench.rules.advantages import GroupNormalized, Posterior, group_normalized, posterior
from workbench.rules.selectors import All, MaxReward, MaxVariance, Random, Rejection


class Coin:
    """A policy of two logits, whatever the prompt and the place: tokens 0 and 1."""

    def __init__(self, logits=(0.0, 0.0)):
        self.model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(logits))])

    def parameters(self):
        return self.model.parameters()

    def logprobs(self, rollouts, temperature=1.0):
        tokens = torch.as_tensor(rollouts.response.padded()).long()
        mask = torch.as_tensor(rollouts.response.mask())
        of_tokens = torch.log_softmax(self.model[0] / temperature, 0)[tokens]
        return torch.where(mask, of_tokens, 0.0)


def tossed(*responses, correct=None):
    """Rollouts of one problem with these response tokens."""
    return Rollouts(
        problem=["p"] * len(responses),
        response=Ragged.of(responses, np.int32),
        prompt=Ragged.of([[7]] * len(responses), np.int32),
        correct=correct,
        reward=None if correct is None else np.asarray(correct, float),
    )


def sampled(policy, lab, count, n, seed=0):
    problems = list(lab.problems)[:count]
    return sampled_groups(policy, problems, lab.verifier, n, sampling=lab.sampling, seed=seed)


class TestGradients:
    def test_two_logits_by_hand(self):
        # d log p(0) = (1 - 1/2, -1/2); over tokens (0, 0, 1) it is ((1/2 + 1/2 - 1/2) / 3, ...)
        found = rollout_gradients(Coin(), tossed([0], [1], [0, 0, 1], [0, 1]))
        expected = np.array([[0.5, -0.5], [-0.5, 0.5], [1 / 6, -1 / 6], [0, 0]])
        assert found.numpy() == pytest.approx(expected)
        assert inner_products(found)[0] == pytest.approx([0.5, -0.5, 1 / 6, 0])

    def test_a_temperature_divides_the_gradient(self):
        found = rollout_gradients(Coin(), tossed([0]), 2.0)
        assert found.numpy() == pytest.approx(np.array([[0.25, -0.25]]))

    def test_equal_responses_share_a_row(self):
        rollouts = tossed([0], [1, 1], [0], [1, 1])
        plain = inner_products(rollout_gradients(Coin((0.3, -0.1)), rollouts))
        assert group_products(Coin((0.3, -0.1)), rollouts)["p"] == pytest.approx(plain)

    def test_wide_gradients_are_summed_in_parts(self, monkeypatch):
        rows = np.random.default_rng(0).normal(size=(3, 10))
        monkeypatch.setattr(gradients, "COLUMNS_AT_ONCE", 4)
        assert inner_products(rows) == pytest.approx(rows @ rows.T)

    @pytest.mark.parametrize("loss_aggregation", ["rollout", "token"])
    def test_weighted_sum_is_the_gradient_of_the_objective(self, policy, lab, loss_aggregation):
        rollouts = mixed_groups(sampled(policy, lab, 6, 6))
        rollouts = rollouts.take(rollouts.problem == rollouts.problem[0])
        advantages = group_normalized(rollouts.reward, rollouts.problem)
        logprobs = policy.logprobs(rollouts)
        loss = policy_loss(
            logprobs,
            logprobs.detach(),
            torch.as_tensor(advantages).float(),
            torch.as_tensor(rollouts.response.mask()),
            loss_aggregation=loss_aggregation,
        )
        parts = torch.autograd.grad(loss, list(policy.parameters()))
        of_loss = -torch.cat([part.reshape(-1) for part in parts])
        everything = np.ones(len(rollouts), bool)
        weights, kept = gradients._update(
            All(), everything, rollouts, GroupNormalized(), loss_aggregation, 0
        )
        summed = torch.as_tensor(weights).float() @ rollout_gradients(policy, rollouts)
        assert kept.all()
        assert torch.allclose(summed, of_loss, atol=1e-5)
        assert of_loss.norm() > 0.1

    def test_sampled_groups(self, policy, lab):
        problems = list(lab.problems)[:3]
        rollouts = sampled(policy, lab, 3, 4, seed=1)
        assert rollouts.problem.tolist() == [p.id for p in problems for _ in range(4)]
        assert not np.isnan(rollouts.reward).any()
        alone = sampled_groups(
            policy, problems[1:2], lab.verifier, 4, sampling=lab.sampling, seed=1
        )
        assert alone.text.tolist() == rollouts.text[4:8].tolist()

    def test_mixed_groups(self):
        rollouts = table("0011", "0000", "111", "0111")
        assert set(mixed_groups(rollouts).problem) == {"p0", "p3"}
        assert set(mixed_groups(rollouts, 2).problem) == {"p0"}


def pool(seed, right, wrong, size=5):
    """Inner products of random gradients, and which of them are right."""
    rows = np.random.default_rng(seed).normal(size=(right + wrong, size))
    return rows @ rows.T, np.arange(right + wrong) < right


COUNTS = st.integers(1, 6)


class TestTheorem:
    def test_by_hand(self):
        # v = (1, 0) right, (0, 1) and (0, -1) wrong: v_C - v_F = (1, 0), factor 2/9
        rows = np.array([[1.0, 0], [0, 1], [0, -1]])
        assert norm_bound(rows @ rows.T, [True, False, False]) == pytest.approx((2 / 9, 2 / 9))
        assert balance(4, 4) == 0.25
        assert balance(1, [1, 2]) == pytest.approx([1 / 4, 2 / 9])

    @given(st.integers(0, 1000), COUNTS, COUNTS)
    def test_one_group_reaches_the_bound(self, seed, right, wrong):
        norms = norm_bound(*pool(seed, right, wrong))
        assert norms.squared == pytest.approx(norms.bound, rel=1e-9, abs=1e-12)

    @given(st.integers(0, 1000), COUNTS, COUNTS)
    def test_equal_lengths_make_no_difference(self, seed, right, wrong):
        lengths = np.full(right + wrong, 7)
        plain = norm_bound(*pool(seed, right, wrong))
        assert norm_bound(*pool(seed, right, wrong), lengths) == pytest.approx(plain)

    def test_unequal_lengths_can_break_it(self):
        # One right rollout of length 3 with gradient 1, one wrong one of length 1 with gradient 0:
        # (3/4)^2 against 1/4.
        products = np.array([[1.0, 0], [0, 0]])
        norms = norm_bound(products, [True, False], np.array([3, 1]))
        assert norms == pytest.approx((9 / 16, 1 / 4))

    @settings(max_examples=50)
    @given(st.data(), st.integers(0, 1000), st.integers(2, 5), st.integers(2, 5))
    def test_expectations_are_those_of_all_groups(self, data, seed, right, wrong):
        c = data.draw(st.integers(1, right))
        m = data.draw(st.integers(1, wrong))
        products, correct = pool(seed, right, wrong)
        of_right = combinations(range(right), c)
        of_wrong = combinations(range(right, right + wrong), m)
        groups = [list(a + b) for a, b in product(of_right, of_wrong)]
        single = np.mean([norm_bound(products[np.ix_(g, g)], correct[g]).squared for g in groups])
        weights = np.zeros(right + wrong)
        for group in groups:
            advantages = group_normalized(correct[group].astype(float), np.zeros(c + m))
            weights[group] += advantages / (c + m) / len(groups)
        norms = expected_norms(products, correct, c, m)
        assert norms == pytest.approx((squared_norm(products, weights), single))
        assert norms.squared <= norms.bound + 1e-9

    def test_norms_by_balance(self):
        products = {"p0": pool(0, 4, 6)[0], "p1": pool(1, 1, 9)[0]}
        frame = norms_by_balance(products, table("1111000000", "1000000000"), 3, [1, 5])
        one_right = "one right rollout is too few for c = 3"
        assert frame["problem"].unique().tolist() == ["p0"], one_right
        assert frame["m"].tolist() == [1, 3, 5]
        assert frame["k"].tolist() == pytest.approx([1 / 3, 1, 5 / 3])
        factors = [3 / 16 * 4, 1, 15 / 64 * 4]
        assert frame["factor"].tolist() == pytest.approx(factors)
        assert frame["signal"].to_numpy() == pytest.approx(factors)

    def test_the_lemma_is_asked_where_it_is_stated(self):
        """Two problems: at m = 2c the mean gradient is 1 and 3 % smaller; m below c is left out."""
        rows = []
        for problem, signal in (("p", 0.99), ("q", 0.97)):
            rows += [(problem, 1, 0.5, 2.0, 2.0), (problem, 2, 1.0, 1.0, 1.0)]
            rows += [(problem, 4, 2.0, signal, 1.0)]
        frame = pd.DataFrame(rows, columns=["problem", "m", "k", "signal", "group"])
        found = lemma_balance(frame)
        assert found.index.tolist() == [4]
        assert found.loc[4, ["k", "signal", "group", "n"]].tolist() == pytest.approx([2, 2, 0, 2])
        half = 12.706 * 1
        assert found.loc[4, "signal_high"] == pytest.approx(2 + half, rel=1e-3)

    def test_norm_bounds_of_the_tiny_model(self, policy, lab):
        rollouts = mixed_groups(sampled(policy, lab, 8, 12))
        frame = norm_bounds(group_products(policy, rollouts), rollouts, 8)
        largest = (frame["squared"] / frame["bound"]).groupby(frame["case"]).max()
        assert len(frame) >= 6
        assert largest["one group of 8"] == pytest.approx(1)
        assert largest["mean of groups of 4 + 4"] <= 1 + 1e-9

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: norm_bound(np.eye(2), [True, True]), "2 of 2; the theorem is about groups"),
            (lambda: norm_bound(np.eye(3), [True, False]), r"products \(3, 3\) and correct \(2,\)"),
            (lambda: expected_norms(*pool(0, 2, 2), 3, 1), "c=3"),
            (lambda: norm_bounds({}, table("01"), 3), "n=3"),
        ],
    )
    def test_bad_arguments(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


class TestPrior:
    @pytest.mark.slow
    def test_norms_are_those_of_the_weighted_gradients(self, policy, lab):
        problems = list(lab.problems)[-8:]
        rollouts = sampled_groups(policy, problems, lab.verifier, 4, sampling=lab.sampling, seed=2)
        plain = group_normalized(rollouts.reward, rollouts.problem)
        both = posterior(rollouts.reward, rollouts.problem)
        assert plain.any()
        assert (both - plain).any()
        vectors = rollout_gradients(policy, rollouts)

        def size(advantages):
            weights = torch.as_tensor(advantages / len(advantages)).float()
            return float((weights @ vectors).norm())

        before = torch.cat([part.detach().reshape(-1) for part in policy.parameters()])
        found = prior_norms(policy, rollouts)
        expected = [size(plain), size(both), size(both - plain)]
        norms = [found[name] for name in ("without", "with", "part")]
        assert norms == pytest.approx(expected, rel=1e-3)
        assert found["ratio"] == pytest.approx(size(both) / size(plain), rel=1e-3)
        # So many times larger advantages of uniform groups would give the published ratio.
        more = plain + found["factor"] * (both - plain)
        assert size(more) == pytest.approx(1.5 * size(plain), rel=1e-2)
        after = torch.cat([part.detach().reshape(-1) for part in policy.parameters()])
        assert torch.equal(before, after)

    def test_half_cosines_by_hand(self):
        # "0101" asks for the same direction twice, "0110" for opposite ones, "0011" has halves of
        # unlike kinds, "0000" has no gradient.
        rollouts = table("0101", "0110", "0011", "0000")
        rows = np.array([[0.0], [1], [0], [1]])
        products = {f"p{i}": rows @ rows.T for i in range(4)}
        found = half_cosines(products, rollouts)
        assert found.to_numpy().tolist() == [["p0", "mixed", 1.0], ["p1", "mixed", -1.0]]
        with_prior = half_cosines(products, rollouts, Posterior())
        assert with_prior["kind"].tolist() == ["mixed", "mixed", "all wrong"]


class TestFidelity:
    def test_by_hand(self):
        # Right: (1, 0) and (0, 1); wrong: 0 twice. The group asks for (1, 1)/4; max variance keeps
        # the first of each: (1, 0)/2.
        rows = np.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])
        selectors = [MaxVariance(2), MaxReward(2), All()]
        frame = fidelity({"p0": rows @ rows.T}, table("1100"), selectors)
        columns = ["kept", "cosine", "norm_ratio"]
        first, second, everything = frame[columns].to_numpy().tolist()
        assert first == pytest.approx([0.5, np.sqrt(0.5), np.sqrt(2)])
        assert second == [0.5, 0, 0], "both are right"
        assert everything == pytest.approx([1, 1, 1])
        assert frame["gradient"].tolist() == [True, False, True]

    @pytest.mark.slow
    @given(
        st.integers(0, 1000),
        st.lists(st.text("01", min_size=2, max_size=9), min_size=1, max_size=4),
    )
    def test_keeping_everything_changes_nothing(self, seed, outcomes):
        products = {f"p{i}": pool(seed + i, len(text), 0)[0] for i, text in enumerate(outcomes)}
        selectors = [All(), MaxVariance(9), Rejection(9)]
        frame = fidelity(products, table(*outcomes), selectors, seed=seed)
        mixed = sum(len(set(text)) == 2 for text in outcomes)
        assert len(frame) == 3 * mixed
        assert frame[["kept", "cosine", "norm_ratio"]].to_numpy() == pytest.approx(1)

    def test_against_fresh_rollouts(self):
        rollouts = table("1001", "1100")
        seen = np.tile([True, True, False, False], 2)
        rows = np.array([[1.0], [0], [0], [-1]])
        products = {"p0": rows @ rows.T, "p1": np.eye(4)}
        frame = fidelity(products, rollouts, [All()], seen=seen, reference=~seen)
        assert frame["problem"].tolist() == ["p0"], "the other's candidates are all right"
        assert frame["cosine"].tolist() == [-1], "right pulls up in one half, down in the other"

    def test_token_mean_weighs_by_length(self):
        rollouts = tossed([0, 0, 0], [1], correct=[True, False])
        products = {"p": np.diag([1.0, 1.0])}
        frame = fidelity(products, rollouts, [All()], loss_aggregation="token")
        assert frame["cosine"].tolist() == pytest.approx([1])
        everything = np.ones(2, bool)
        weights, _ = gradients._update(All(), everything, rollouts, GroupNormalized(), "token", 0)
        assert weights == pytest.approx([3 / 4, -1 / 4])

    def test_means(self):
        rollouts = table("110000", "100000", "111000")
        products = {f"p{i}": pool(i, 6, 0)[0] for i in range(3)}
        selectors = [Random(2), Random(2, baseline="group"), MaxVariance(2)]
        frame = fidelity(products, rollouts, selectors, seed=1)
        means = fidelity_means(frame)
        assert means["rule"].tolist() == ["Random", "Random, group baseline", "MaxVariance"]
        assert (means["n"] == 3).all()
        assert means["kept"].tolist() == pytest.approx([1 / 3] * 3)
        assert means["gradient"].iloc[1:].tolist() == [1, 1]
        part = frame["cosine"][frame["rule"] == "MaxVariance"]
        assert means["cosine"].iloc[2] == pytest.approx(part.mean())
        half = 4.302653 * part.std() / np.sqrt(3)
        assert means["cosine_half"].iloc[2] == pytest.approx(half, rel=1e-5)

    def test_cosine_of_nothing_is_zero(self):
        assert cosine(np.eye(2), np.zeros(2), np.ones(2)) == 0
        assert squared_norm(np.eye(2), np.array([3.0, 4])) == 25

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"loss_aggregation": "sum"}, "loss_aggregation='sum'"),
            ({"seen": np.ones(3, bool)}, "seen"),
            ({"reference": np.ones(2)}, "reference"),
        ],
    )
    def test_bad_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            fidelity({"p0": np.eye(2)}, table("01"), [All()], **options)

    def test_no_problem_gives_an_empty_frame(self):
        frame = fidelity({}, table("01"), [All()])
        assert isinstance(frame, pd.DataFrame)
        assert frame.empty
