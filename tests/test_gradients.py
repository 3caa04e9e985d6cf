"""Gradients of a policy small enough for paper, the algebra of AERO's theorem, and the real update of the tiny model."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_selectors import table

from workbench.advantages import group_normalized, posterior
from workbench.objectives import policy_loss
from workbench.rollouts import Ragged, Rollouts
from workbench.selectors import All, MaxReward, MaxVariance, Random, Rejection
from workbench.theory import gradients
from workbench.theory.gradients import (
    balance,
    cosine,
    expected_norms,
    fidelity,
    fidelity_means,
    group_products,
    half_cosines,
    inner_products,
    mixed_groups,
    norm_bound,
    norm_bounds,
    norms_by_balance,
    prior_norms,
    rollout_gradients,
    sampled_groups,
    squared_norm,
)


class Coin:
    """A policy of two logits, whatever the prompt and the place: tokens 0 and 1, at first with equal chance."""

    def __init__(self, logits=(0.0, 0.0)):
        self.model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(logits))])

    def parameters(self):
        return self.model.parameters()

    def logprobs(self, rollouts, temperature=1.0):
        tokens = torch.as_tensor(rollouts.response.padded()).long()
        mask = torch.as_tensor(rollouts.response.mask())
        return torch.where(mask, torch.log_softmax(self.model[0] / temperature, 0)[tokens], 0.0)


def tossed(*responses, correct=None):
    rows = Ragged.of(responses, np.int32)
    return Rollouts(problem=["p"] * len(responses), response=rows, prompt=Ragged.of([[7]] * len(responses), np.int32),
                    correct=correct, reward=None if correct is None else np.asarray(correct, float))  # fmt: skip


class TestGradients:
    def test_two_logits_by_hand(self):
        # d log p(0) = (1 - 1/2, -1/2); the mean over tokens (0, 0, 1) is ((1/2 + 1/2 - 1/2) / 3, ...)
        found = rollout_gradients(Coin(), tossed([0], [1], [0, 0, 1], [0, 1]))
        assert found.numpy() == pytest.approx(
            np.array([[0.5, -0.5], [-0.5, 0.5], [1 / 6, -1 / 6], [0, 0]])
        )
        assert inner_products(found)[0] == pytest.approx([0.5, -0.5, 1 / 6, 0])
        assert rollout_gradients(Coin(), tossed([0]), 2.0).numpy() == pytest.approx(
            np.array([[0.25, -0.25]])
        )

    def test_equal_responses_share_a_row(self):
        rollouts = tossed([0], [1, 1], [0], [1, 1])
        plain = inner_products(rollout_gradients(Coin((0.3, -0.1)), rollouts))
        assert group_products(Coin((0.3, -0.1)), rollouts)["p"] == pytest.approx(plain)

    def test_wide_gradients_are_summed_in_parts(self, monkeypatch):
        rows = np.random.default_rng(0).normal(size=(3, 10))
        monkeypatch.setattr(gradients, "COLUMNS_AT_ONCE", 4)
        assert inner_products(rows) == pytest.approx(rows @ rows.T)

    @pytest.mark.parametrize("mean", ["rollout", "token"])
    def test_weighted_sum_is_the_gradient_of_the_objective(self, policy, lab, mean):
        rollouts = mixed_groups(
            sampled_groups(policy, list(lab.problems)[:6], lab.verifier, 6, sampling=lab.sampling)
        )
        rollouts = rollouts.take(rollouts.problem == rollouts.problem[0])
        advantages = group_normalized(rollouts.reward, rollouts.problem)
        logprobs = policy.logprobs(rollouts)
        loss = policy_loss(logprobs, logprobs.detach(), torch.as_tensor(advantages).float(),
                           torch.as_tensor(rollouts.response.mask()), mean=mean)  # fmt: skip
        ours = -torch.cat(
            [part.reshape(-1) for part in torch.autograd.grad(loss, list(policy.parameters()))]
        )
        weights, kept = gradients._update(
            All(), np.ones(len(rollouts), bool), rollouts, group_normalized, mean, 0
        )
        summed = torch.as_tensor(weights).float() @ rollout_gradients(policy, rollouts)
        assert kept.all() and torch.allclose(summed, ours, atol=1e-5) and ours.norm() > 0.1

    def test_sampled_groups(self, policy, lab):
        problems = list(lab.problems)[:3]
        rollouts = sampled_groups(policy, problems, lab.verifier, 4, sampling=lab.sampling, seed=1)
        assert (
            rollouts.problem.tolist() == [p.id for p in problems for _ in range(4)]
            and not np.isnan(rollouts.reward).any()
        )
        alone = sampled_groups(
            policy, problems[1:2], lab.verifier, 4, sampling=lab.sampling, seed=1
        )
        assert alone.text.tolist() == rollouts.text[4:8].tolist()

    def test_mixed_groups(self):
        rollouts = table("0011", "0000", "111", "0111")
        assert set(mixed_groups(rollouts).problem) == {"p0", "p3"} and set(
            mixed_groups(rollouts, 2).problem
        ) == {"p0"}


def pool(seed, right, wrong, size=5):
    rows = np.random.default_rng(seed).normal(size=(right + wrong, size))
    return rows @ rows.T, np.arange(right + wrong) < right


counts = st.integers(1, 6)


class TestTheorem:
    def test_by_hand(self):
        # v = (1, 0) right, (0, 1) and (0, -1) wrong: v_C - v_F = (1, 0), factor 2/9
        rows = np.array([[1.0, 0], [0, 1], [0, -1]])
        assert norm_bound(rows @ rows.T, [True, False, False]) == pytest.approx((2 / 9, 2 / 9))
        assert balance(4, 4) == 0.25 and balance(1, [1, 2]) == pytest.approx([1 / 4, 2 / 9])

    @given(st.integers(0, 1000), counts, counts)
    def test_one_group_reaches_the_bound(self, seed, right, wrong):
        norms = norm_bound(*pool(seed, right, wrong))
        assert norms.squared == pytest.approx(norms.bound, rel=1e-9, abs=1e-12)

    @given(st.integers(0, 1000), counts, counts)
    def test_equal_lengths_make_no_difference(self, seed, right, wrong):
        lengths = np.full(right + wrong, 7)
        assert norm_bound(*pool(seed, right, wrong), lengths) == pytest.approx(
            norm_bound(*pool(seed, right, wrong))
        )

    def test_unequal_lengths_can_break_it(self):
        # one right rollout of length 3 with gradient 1, one wrong one of length 1 with gradient 0: (3/4)^2 against 1/4
        products = np.array([[1.0, 0], [0, 0]])
        assert norm_bound(products, [True, False], np.array([3, 1])) == pytest.approx(
            (9 / 16, 1 / 4)
        )

    @settings(max_examples=50)
    @given(st.data(), st.integers(0, 1000), st.integers(2, 5), st.integers(2, 5))
    def test_expectations_are_those_of_all_groups(self, data, seed, right, wrong):
        c, m = data.draw(st.integers(1, right)), data.draw(st.integers(1, wrong))
        products, correct = pool(seed, right, wrong)
        groups = product(
            combinations(range(right), c), combinations(range(right, right + wrong), m)
        )
        groups = [list(a + b) for a, b in groups]
        single = np.mean([norm_bound(products[np.ix_(g, g)], correct[g]).squared for g in groups])
        weights = np.zeros(right + wrong)
        for g in groups:
            weights[g] += (
                group_normalized(correct[g].astype(float), np.zeros(c + m)) / (c + m) / len(groups)
            )
        norms = expected_norms(products, correct, c, m)
        assert (
            norms == pytest.approx((squared_norm(products, weights), single))
            and norms.squared <= norms.bound + 1e-9
        )

    def test_norms_by_balance(self):
        products, correct = (
            {"p0": pool(0, 4, 6)[0], "p1": pool(1, 1, 9)[0]},
            ["1111000000", "1000000000"],
        )
        frame = norms_by_balance(products, table(*correct), 3, [1, 5])
        assert frame["problem"].unique().tolist() == ["p0"], (
            "one right rollout is too few for c = 3"
        )
        assert frame["m"].tolist() == [1, 3, 5] and frame["factor"].tolist() == pytest.approx(
            [3 / 16 * 4, 1, 15 / 64 * 4]
        )
        assert frame["signal"].to_numpy() == pytest.approx(frame["factor"].to_numpy())

    def test_norm_bounds_of_the_tiny_model(self, policy, lab):
        rollouts = sampled_groups(
            policy, list(lab.problems)[:8], lab.verifier, 12, sampling=lab.sampling
        )
        rollouts = mixed_groups(rollouts)
        frame = norm_bounds(group_products(policy, rollouts), rollouts, 8)
        ratio = (frame["squared"] / frame["bound"]).groupby(frame["case"])
        assert len(frame) >= 6 and ratio.max()["one group of 8"] == pytest.approx(1)
        assert ratio.max()["mean of groups of 4 + 4"] <= 1 + 1e-9

    @pytest.mark.parametrize("call, message", [
        (lambda: norm_bound(np.eye(2), [True, True]), "2 of 2; the theorem is about groups with both outcomes"),
        (lambda: norm_bound(np.eye(3), [True, False]), r"products \(3, 3\) and correct \(2,\)"),
        (lambda: expected_norms(*pool(0, 2, 2), 3, 1), "c=3"),
        (lambda: norm_bounds({}, table("01"), 3), "n=3"),
    ])  # fmt: skip
    def test_bad_arguments(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


class TestPrior:
    def test_norms_are_those_of_the_weighted_gradients(self, policy, lab):
        rollouts = sampled_groups(
            policy, list(lab.problems)[-8:], lab.verifier, 4, sampling=lab.sampling, seed=2
        )
        plain, both = (
            rule(rollouts.reward, rollouts.problem) for rule in (group_normalized, posterior)
        )
        assert plain.any() and (both - plain).any()
        vectors = rollout_gradients(policy, rollouts)
        sizes = [
            float((torch.as_tensor(a / len(a)).float() @ vectors).norm())
            for a in (plain, both, both - plain)
        ]
        before = torch.cat([part.detach().reshape(-1) for part in policy.parameters()])
        found = prior_norms(policy, rollouts)
        assert [found[name] for name in ("without", "with", "part")] == pytest.approx(
            sizes, rel=1e-3
        )
        assert found["ratio"] == pytest.approx(sizes[1] / sizes[0], rel=1e-3)
        more = (
            torch.as_tensor((plain + found["factor"] * (both - plain)) / len(plain)).float()
            @ vectors
        )
        assert float(more.norm()) == pytest.approx(1.5 * sizes[0], rel=1e-2)
        assert torch.equal(
            before, torch.cat([part.detach().reshape(-1) for part in policy.parameters()])
        )

    def test_half_cosines_by_hand(self):
        # "0101" asks for the same direction twice, "0110" for opposite ones, "0011" has halves of unlike kinds
        rollouts, rows = table("0101", "0110", "0011", "0000"), np.array([[0.0], [1], [0], [1]])
        products = {f"p{i}": rows @ rows.T for i in range(4)}
        found = half_cosines(products, rollouts)
        assert found.to_numpy().tolist() == [["p0", "mixed", 1.0], ["p1", "mixed", -1.0]], (
            "others have no gradient"
        )
        assert half_cosines(products, rollouts, posterior)["kind"].tolist() == [
            "mixed",
            "mixed",
            "all wrong",
        ]


class TestFidelity:
    def test_by_hand(self):
        # right: (1, 0) and (0, 1); wrong: 0 twice. Group: (1, 1)/4; max variance keeps the first of each: (1, 0)/2
        rows = np.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])
        frame = fidelity(
            {"p0": rows @ rows.T}, table("1100"), [MaxVariance(2), MaxReward(2), All()]
        )
        first, second, everything = frame.itertuples()
        assert (first.kept, first.cosine, first.norm_ratio) == pytest.approx(
            (0.5, np.sqrt(0.5), np.sqrt(2))
        )
        assert (second.kept, second.cosine, second.norm_ratio, second.gradient) == (
            0.5,
            0,
            0,
            False,
        ), "both are right"
        assert (everything.kept, everything.cosine, everything.norm_ratio) == pytest.approx(
            (1, 1, 1)
        )

    @given(
        st.integers(0, 1000),
        st.lists(st.text("01", min_size=2, max_size=9), min_size=1, max_size=4),
    )
    def test_keeping_everything_changes_nothing(self, seed, outcomes):
        products = {f"p{i}": pool(seed + i, len(text), 0)[0] for i, text in enumerate(outcomes)}
        frame = fidelity(
            products, table(*outcomes), [All(), MaxVariance(9), Rejection(9)], seed=seed
        )
        assert len(frame) == 3 * sum(len(set(text)) == 2 for text in outcomes)
        assert frame[["kept", "cosine", "norm_ratio"]].to_numpy() == pytest.approx(1)

    def test_against_fresh_rollouts(self):
        rollouts, seen = table("1001", "1100"), np.tile([True, True, False, False], 2)
        rows = np.array([[1.0], [0], [0], [-1]])
        frame = fidelity(
            {"p0": rows @ rows.T, "p1": np.eye(4)}, rollouts, [All()], seen=seen, reference=~seen
        )
        assert frame["problem"].tolist() == ["p0"], "the other's candidates are all right"
        assert frame["cosine"].tolist() == [-1], "right pulls up in one half, down in the other"

    def test_token_mean_weighs_by_length(self):
        rollouts = tossed([0, 0, 0], [1], correct=[True, False])
        frame = fidelity({"p": np.diag([1.0, 1.0])}, rollouts, [All()], mean="token")
        weights, _ = gradients._update(
            All(), np.ones(2, bool), rollouts, group_normalized, "token", 0
        )
        assert weights == pytest.approx([3 / 4, -1 / 4]) and frame[
            "cosine"
        ].tolist() == pytest.approx([1])

    def test_means(self):
        rollouts = table("110000", "100000", "111000")
        products = {f"p{i}": pool(i, 6, 0)[0] for i in range(3)}
        frame = fidelity(
            products, rollouts, [Random(2), Random(2, statistics="pool"), MaxVariance(2)], seed=1
        )
        means = fidelity_means(frame)
        assert (
            means["rule"].tolist() == ["Random", "Random, pool statistics", "MaxVariance"]
            and (means["n"] == 3).all()
        )
        assert means["kept"].tolist() == pytest.approx([1 / 3] * 3) and means["gradient"].iloc[
            1:
        ].tolist() == [1, 1]
        part = frame["cosine"][frame["rule"] == "MaxVariance"]
        assert means["cosine"].iloc[2] == pytest.approx(part.mean())
        assert means["cosine_half"].iloc[2] == pytest.approx(
            4.302653 * part.std() / np.sqrt(3), rel=1e-5
        )

    def test_cosine_of_nothing_is_zero(self):
        assert (
            cosine(np.eye(2), np.zeros(2), np.ones(2)) == 0
            and squared_norm(np.eye(2), np.array([3.0, 4])) == 25
        )

    @pytest.mark.parametrize("options, message", [
        ({"mean": "sum"}, "mean='sum'"), ({"seen": np.ones(3, bool)}, r"seen: bool \(3,\)"),
        ({"reference": np.ones(2)}, "reference: float64")])  # fmt: skip
    def test_bad_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            fidelity({"p0": np.eye(2)}, table("01"), [All()], **options)

    def test_no_problem_gives_an_empty_frame(self):
        assert (
            isinstance(fidelity({}, table("01"), [All()]), pd.DataFrame)
            and fidelity({}, table("01"), [All()]).empty
        )
