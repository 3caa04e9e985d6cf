"""The bandit with known truth, and the bounds' quantities on sets that are checked otherwise."""

import numpy as np
import pytest

from papers.bandits import (
    Bandit,
    best_reachable,
    effective_dimension,
    growth_exponent,
    neural_tangent_kernel,
    norm,
    regret,
)
from workbench.rules.scheduler import Learner


@pytest.fixture(scope="module")
def curves():
    """Cumulative regret (runs, rounds) of each policy on a learnable bandit."""
    bandits = [Bandit(seed=seed) for seed in range(3)]
    policies = {name: (name, {}) for name in ("cbs", "random", "oracle", "greedy")}
    policies["decayed"] = ("cbs", {"floor": 0.005})
    found = {}
    for name, (policy, options) in policies.items():
        runs = [regret(bandit, policy, 1000, seed=bandit.seed, **options) for bandit in bandits]
        found[name] = np.array(runs)
    return found


class TestBandit:
    def test_arms(self):
        features, truth, seen = Bandit(arms=4, dimension=3, noise=0.5).rounds(200)
        assert features.shape == (200, 4, 3)
        assert np.linalg.norm(features, axis=2) == pytest.approx(np.ones((200, 4)))
        assert truth.min() >= 0
        assert truth.max() <= 1
        assert np.std(seen - truth) == pytest.approx(0.5, rel=0.1)
        again = Bandit(arms=4, dimension=3).rounds(200)[0]
        other = Bandit(arms=4, dimension=3, seed=1).rounds(200)[0]
        assert np.array_equal(features, again)
        assert not np.array_equal(features, other)

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"reward": "cubic"}, "reward='cubic'"),
            ({"arms": 0}, "arms=0"),
            ({"noise": -1}, "noise=-1"),
        ],
    )
    def test_bad_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            Bandit(**options)
        with pytest.raises(ValueError, match="policy='best'"):
            regret(Bandit(), "best", 3)


class TestRegret:
    @pytest.mark.long
    @pytest.mark.slow
    def test_never_falls_and_the_oracle_has_none(self, curves):
        for name, curve in curves.items():
            assert (np.diff(curve, axis=1) >= 0).all(), name
        assert not curves["oracle"].any()

    @pytest.mark.slow
    def test_cbs_learns(self, curves):
        final = {name: curve[:, -1] for name, curve in curves.items()}
        assert (final["cbs"] < 0.5 * final["random"]).all()
        assert (final["decayed"] < 0.3 * final["random"]).all()
        warm = curves["cbs"][:, 49].mean()
        chance = curves["random"][:, 49].mean()
        assert warm == pytest.approx(chance, rel=0.25), "exploring alone so far"

    @pytest.mark.slow
    def test_exponents(self, curves):
        rng = np.random.default_rng(0)
        found = {name: growth_exponent(curve, rng) for name, curve in curves.items()}
        assert found["random"].estimate == pytest.approx(1, abs=0.05)
        assert found["random"].low > 0.9
        assert found["decayed"].high < 0.75
        assert found["cbs"].estimate < 0.9
        assert np.isnan(found["oracle"].estimate)
        assert found["decayed"].estimate < found["cbs"].estimate, (
            "a lasting floor of 0.2 costs its share of every round"
        )

    def test_a_bandit_without_signal_has_no_regret(self):
        assert not regret(Bandit(reward="none"), "random", 50).any()

    def test_all_arms_together_have_no_regret(self):
        for policy in ("cbs", "greedy", "random", "oracle"):
            assert not regret(Bandit(arms=3), policy, 20, choices=3, warmup=5).any(), policy

    def test_several_choices_are_compared_with_as_many_best_arms(self):
        """Leaving out one arm of three costs the best arm minus the one left out."""
        bandit = Bandit(arms=3, seed=1)
        _, truth, _ = bandit.rounds(50)
        curve = regret(bandit, "random", 50, choices=2)
        steps = np.diff(curve, prepend=0)
        left_out = np.sort(truth, axis=1)
        allowed = left_out - left_out[:, :1]
        assert (np.abs(steps[:, None] - allowed).min(axis=1) < 1e-12).all()
        assert curve[-1] > 0
        assert not regret(bandit, "oracle", 50, choices=2).any()

    @pytest.mark.slow
    def test_k_choices_cost_less_than_k_times_one(self):
        one, four = (
            sum(regret(Bandit(seed=seed), "greedy", 200, choices=k)[-1] for seed in range(3))
            for k in (1, 4)
        )
        assert one < four < 4 * one

    @pytest.mark.parametrize("choices", [0, 11, 1.5])
    def test_bad_choices(self, choices):
        with pytest.raises(ValueError, match=f"choices={choices}"):
            regret(Bandit(arms=10), "random", 3, choices=choices)

    def test_exponent_by_hand(self):
        rounds = np.arange(1, 401)
        rng = np.random.default_rng(0)
        same = growth_exponent(np.stack([2 * rounds**0.5, 3 * rounds**0.5]), rng)
        assert same == pytest.approx((0.5, 0.5, 0.5))
        assert np.isnan(growth_exponent([rounds], rng).low), "one run has no interval"
        with pytest.raises(ValueError, match="at least 4 rounds"):
            growth_exponent([[1.0, 2.0]], rng)


class TestKernel:
    @staticmethod
    def unit(n, dimension=10, seed=0):
        rows = np.random.default_rng(seed).normal(size=(n, dimension))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def test_by_sampling(self):
        features = self.unit(2)
        rng = np.random.default_rng(1)
        c = features[0] @ features[1]
        a, b = rng.multivariate_normal([0, 0], [[1, c], [c, 1]], 400_000).T
        sigma = 2 * np.mean(np.maximum(a, 0) * np.maximum(b, 0))
        step = np.mean((a > 0) & (b > 0))
        kernel = neural_tangent_kernel(features, 2)
        assert kernel[0, 1] == pytest.approx((2 * c * step + 2 * sigma) / 2, abs=0.01)
        assert np.diag(kernel) == pytest.approx([1.5, 1.5]), "(2 + 1) / 2"
        assert np.diag(neural_tangent_kernel(features, 3)) == pytest.approx([2, 2])

    def test_without_a_hidden_layer_it_is_linear(self):
        features = self.unit(4)
        assert np.allclose(neural_tangent_kernel(features, 1), features @ features.T)

    @pytest.mark.parametrize("depth", [2, 3])
    def test_orders_pairs_as_a_wide_network_of_the_same_depth_does(self, depth):
        features = self.unit(8)
        learner = Learner(0, width=1000, depth=depth)
        layers = learner._layers(features)
        gradients = []
        for row in range(8):
            slope = np.ones((1, 1), np.float32)
            parts = []
            # Backward through the layers; weights and biases take turns among the parameters.
            for i in reversed(range(depth)):
                below = layers[i][row : row + 1]
                parts.append((below.T @ slope).ravel())
                slope = (slope @ learner.parameters[2 * i].T) * (below > 0)
            gradients.append(np.concatenate(parts))
        wide = np.array(gradients) @ np.array(gradients).T
        upper = np.triu_indices(8, 1)
        kernel = neural_tangent_kernel(features, depth)
        assert np.corrcoef(wide[upper], kernel[upper])[0, 1] > 0.95

    def test_effective_dimension(self):
        assert effective_dimension(np.eye(7)) == pytest.approx(7 * np.log(2) / np.log(8))
        assert effective_dimension(np.zeros((3, 3))) == 0
        few = effective_dimension(neural_tangent_kernel(self.unit(40, 2)))
        many = effective_dimension(neural_tangent_kernel(self.unit(40, 10)))
        assert 0 < few < many <= 40

    def test_norm(self):
        assert norm(4 * np.eye(2), [2.0, 2.0]) == pytest.approx(np.sqrt(2))
        features = self.unit(40)
        kernel = neural_tangent_kernel(features)
        smooth = (1 + features[:, 0]) / 2
        rough = np.random.default_rng(0).permutation(smooth)
        easier = "a reward that follows the features is easier"
        assert norm(kernel, smooth) < norm(kernel, rough), easier

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="Euclidean length 1"):
            neural_tangent_kernel(np.ones((2, 2)))
        with pytest.raises(ValueError, match="depth=0"):
            neural_tangent_kernel(self.unit(2), 0)
        with pytest.raises(ValueError, match="same features"):
            norm(neural_tangent_kernel(self.unit(1)[[0, 0]]), [1.0, 0.0])


class TestBufferSize:
    def test_by_hand(self):
        """Kind 1 helps, kind 0 sets back; sequences 000, 001, 010, 011, 100, 101, 110, 111."""

        def step(state, kind):
            return max(0, state + (1 if kind else -1))

        reached = [best_reachable(size, 3, step, float) for size in (1, 2, 3)]
        assert reached[0] == pytest.approx(np.mean([0, 1, 1, 2, 1, 1, 2, 3])), "no choice"
        assert reached[0] < reached[1] < reached[2]
        assert reached[2] == pytest.approx(np.mean([0, 1, 2, 2, 3, 3, 3, 3])), (
            "a good one, once there, is used again"
        )

    @pytest.mark.parametrize("seed", range(4))
    def test_a_larger_buffer_is_never_worse(self, seed):
        rng = np.random.default_rng(seed)
        table = rng.integers(5, size=(5, 2))
        value = rng.random(5)

        def step(state, kind):
            return table[state, kind]

        reached = [best_reachable(size, 3, step, value.__getitem__) for size in (1, 2, 3)]
        assert (np.diff(reached) >= 0).all()

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="buffer=4"):
            best_reachable(4, 3, max, float)
