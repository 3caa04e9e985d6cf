"""CBS's learner: every equation on hand-made numbers, and what it learns."""

import numpy as np
import pytest

from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules import selectors
from workbench.rules.scheduler import (
    FEATURES,
    Learner,
    Scheduler,
    epsilon,
    epsilon_greedy,
    features,
    rollout_rewards,
    round_reward,
    scaled,
)


def pool(rewards, problems, ages=None, number=1, entropy=None, seed=0, **columns):
    """Candidates of round `number` with the columns that a run adds."""
    rng = np.random.default_rng(seed)
    size = len(rewards)
    rewards = np.asarray(rewards, dtype=float)
    ages = np.zeros(size, int) if ages is None else np.asarray(ages)
    response = Ragged.of([rng.integers(4, 14, n) for n in rng.integers(1, 9, size)], np.int32)
    return Rollouts(
        problem=problems,
        reward=rewards,
        round=number - ages,
        response=response,
        entropy=np.full(size, 0.5) if entropy is None else entropy,
        columns={"age": ages, "advantage": rewards - rewards.mean(), **columns},
    )


def kept_rows(scheduler, table, seed=0):
    """The rows that a scheduler keeps in the table's round."""
    return scheduler.select(table, Context(seed=seed)).rows


def plain_loop(scores, ages, explore, groups, picks):
    """Eq. 8 by its definition."""
    left = set(range(len(scores)))
    chosen = []
    for exploring, group in zip(explore, picks):
        rows = [i for i in sorted(left) if groups[i] == group]
        if exploring:
            row = min(rows, key=lambda i: (ages[i], i))
        else:
            row = min(rows, key=lambda i: (-scores[i], i))
        chosen.append(row)
        left.remove(row)
    return chosen


def test_epsilon_is_that_of_the_paper():
    assert [epsilon(t) for t in (1, 50, 51, 100, 101, 500)] == pytest.approx(
        [1, 1, 0.6, 0.208, 0.2, 0.2]
    )
    assert epsilon(500, floor=0.005) == 0.005
    assert epsilon(1, warmup=0) == 1.0
    assert epsilon(2, warmup=0) == pytest.approx(0.992)


class TestFeatures:
    def test_the_ten_by_hand(self):
        table = Rollouts(
            problem=["a", "b", "a", "b"],
            reward=[1, 0, 0, 0],
            truncated=[False, True, False, False],
            entropy=[0.5, 0.25, 1.5, 0.75],
            response=Ragged.of([[5] * 4, [5] * 8, [5] * 2, [5]], np.int32),
            columns={
                "advantage": [1, 0, -1, 0],
                "age": [0, 0, 2, 2],
                "uses": [0, 0, 1, 3],
                "clip_ratio": [np.nan, np.nan, 0.1, 0],
            },
        )
        assert features(table, 16).tolist() == [
            [1, 1, 0.5, 0.5, 0.25, 0, 0.5, 0, 0, 0],
            [0, 0, 0, 0, 0.5, 1, 0.25, 0, 0, 0],
            [0, -1, 0.5, 0.5, 0.125, 0, 1.5, 0.1, 1, 2],
            [0, 0, 0, 0, 0.0625, 0, 0.75, 0, 3, 2],
        ]
        assert features(table).T[4].tolist() == [0.5, 1, 0.25, 0.125]
        assert len(FEATURES) == 10
        split = table.assign(group=["a1", "b", "a2", "b"])
        assert features(split)[:, 2].tolist() == [1, 0, 0, 0]

    def test_scaling(self):
        table = np.array([[1.0, 5.0, 0.1 + 0.2], [3.0, 5.0, 0.3]])
        assert scaled(table).tolist() == [[-1, 0, 0], [1, 0, 0]]
        assert scaled(table, "none") is table
        assert np.linalg.norm(scaled(table, "unit"), axis=1) == pytest.approx([1, 1])
        assert scaled(np.zeros((2, 3)), "unit").tolist() == np.zeros((2, 3)).tolist()

    @pytest.mark.parametrize(
        "name, value", [("entropy", np.nan), ("advantage", np.inf), ("uses", np.inf)]
    )
    def test_not_finite(self, name, value):
        bad = pool([1, 0], ["a", "a"]).assign(**{name: np.array([0.0, value])})
        with pytest.raises(
            ValueError, match=f"features: {name} of rollout 1 is {value}, not finite"
        ):
            features(bad)

    def test_missing(self):
        with pytest.raises(ValueError, match="column 'advantage' is missing"):
            features(Rollouts(problem=["a"], reward=[1.0], entropy=[0.1]))


class TestReward:
    def test_by_hand(self):
        # gain .2, mean .9 * .2 = .18, variance .1 + .9 * .02 ** 2
        after, average = round_reward((0.3, 0.05), (0.5, 0.15), (0.0, 1.0), order="after")
        assert after == pytest.approx(1 / (1 + np.exp(-0.2)))
        assert average == pytest.approx((0.18, 0.1 + 0.9 * 0.0004))
        before, same = round_reward((0.3, 0.05), (0.5, 0.15), (0.0, 1.0))
        assert before == pytest.approx(1 / (1 + np.exp(-0.02 / np.sqrt(0.10036))))
        assert same == average
        second, average = round_reward((0.5, 0.05), (0.4, 0.05), average, order="after")
        assert second == pytest.approx(1 / (1 + np.exp(0.28 / np.sqrt(0.10036))))
        assert average == pytest.approx((0.018 - 0.09, 0.010036 + 0.9 * 0.028**2))

    def test_entropy_is_charged_above_the_least(self):
        for start, charge in ((0.05, 0), (0.1, 0), (0.2, 100 * 0.01)):
            assert round_reward((0, start), (0, start + 0.01))[0] == pytest.approx(0.5 - charge)
        assert round_reward((0, 1.0), (0, 2.0), weight=0)[0] == 0.5

    def test_plain_gain(self):
        assert round_reward((0.25, 1.0), (0.5, 1.5), None, weight=2) == (0.25 - 1.0, None)

    def test_before_stays_within_a_quarter(self):
        average, rng = (0.0, 1.0), np.random.default_rng(0)
        for gain in rng.normal(size=200):
            reward, average = round_reward((0, 0), (gain, 0), average, order="before")
            assert 0.258 < reward < 0.742

    def test_shares_and_extremes(self):
        assert rollout_rewards([-2, 0, 0.5], 0.4) == pytest.approx([0.8, 0, 0.2])
        assert round_reward((0, 0), (1, 0), (0.0, 0.0), order="after")[0] == 1.0
        assert round_reward((0, 0), (0, 0), (0.0, 0.0))[0] == 0.5
        with pytest.raises(ValueError, match="order='later'"):
            round_reward((0, 0), (0, 0), order="later")


class TestPicks:
    def test_order_with_a_fixed_score(self):
        scores = [0.1, 0.9, 0.5, 0.9, 0.3]
        ages = [2, 1, 0, 1, 0]
        assert epsilon_greedy(scores, ages, [False] * 5).tolist() == [1, 3, 2, 4, 0]
        assert epsilon_greedy(scores, ages, [True] * 5).tolist() == [2, 4, 1, 3, 0]
        assert epsilon_greedy(scores, ages, [False, True, False, True]).tolist() == [1, 2, 3, 4]
        assert epsilon_greedy([], [], []).tolist() == []

    @pytest.mark.parametrize("chance", [0.0, 0.05, 0.5, 0.95, 1.0])
    def test_equals_the_plain_loop(self, chance):
        rng = np.random.default_rng(int(chance * 100))
        for _ in range(80):
            size = int(rng.integers(1, 60))
            parts = int(rng.integers(1, 5))
            groups = rng.integers(parts, size=size)
            counts = [rng.integers(n + 1) for n in np.bincount(groups)]
            picks = rng.permutation(np.repeat(np.arange(len(counts)), counts))
            scores = rng.integers(6, size=size) / 4
            ages = rng.integers(4, size=size)
            explore = rng.random(len(picks)) < chance
            rows = epsilon_greedy(scores, ages, explore, groups, picks)
            assert rows.tolist() == plain_loop(scores, ages, explore, groups, picks)

    def test_equals_the_plain_loop_when_scores_follow_age(self):
        rng = np.random.default_rng(1)
        for sign in (1, -1):
            ages = rng.permutation(300)
            explore = rng.random(200) < 0.5
            rows = epsilon_greedy(sign * ages, ages, explore)
            assert rows.tolist() == plain_loop(sign * ages, ages, explore, [0] * 300, [0] * 200)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="picks"):
            epsilon_greedy([1, 2], [0, 0], [True] * 3)


class TestLearner:
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_an_update_lowers_the_error(self, optimizer):
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(64, 10))
        targets = rng.random(64)
        learner = Learner(1, learning_rate=1e-3, optimizer=optimizer)
        before = learner.update(inputs, targets)
        assert before == pytest.approx(
            np.mean((Learner(1).scores(inputs) - targets) ** 2), rel=1e-4
        )
        assert np.mean((learner.scores(inputs) - targets) ** 2) < before

    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_steps_are_those_of_torch(self, optimizer):
        import torch

        rng = np.random.default_rng(0)
        learner = Learner(3, width=7, depth=4, learning_rate=0.01, optimizer=optimizer)
        ours = [torch.tensor(p.copy(), requires_grad=True) for p in learner.parameters]
        steps = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](ours, lr=0.01)
        for _ in range(5):
            inputs = rng.normal(size=(20, 10))
            targets = rng.random(20)
            x = torch.tensor(inputs, dtype=torch.float32)
            for i in range(0, 8, 2):
                x = x @ ours[i] + ours[i + 1] if i == 6 else torch.relu(x @ ours[i] + ours[i + 1])
            loss = ((x[:, 0] - torch.tensor(targets, dtype=torch.float32)) ** 2).mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            assert learner.update(inputs, targets) == pytest.approx(loss.item(), rel=1e-4)
        for p, q in zip(learner.parameters, ours):
            assert p == pytest.approx(q.detach().numpy(), abs=2e-5)

    @pytest.mark.parametrize("strength", [1.0, 0.0])
    def test_a_signal_is_learnt_and_noise_is_not(self, strength):
        def worth(inputs):
            return np.maximum(inputs[:, 1], 0) * (1 - inputs[:, 9])

        rng = np.random.default_rng(0)
        learner = Learner(0, learning_rate=1e-3)
        for _ in range(300):
            inputs = rng.normal(size=(64, 10))
            learner.update(inputs, strength * worth(inputs) + 0.5 * rng.normal(size=64))
        fresh = rng.normal(size=(2000, 10))
        agreement = np.corrcoef(learner.scores(fresh), worth(fresh))[0, 1]
        assert agreement > 0.8 if strength else abs(agreement) < 0.3

    def test_seeded(self):
        a, b, c = (Learner(seed).scores(np.ones((1, 10))) for seed in (1, 1, 2))
        assert a == b != c

    def test_state_goes_on_exactly(self):
        rng = np.random.default_rng(0)
        batches = [(rng.normal(size=(8, 10)), rng.random(8)) for _ in range(6)]
        whole = Learner(0)
        first = Learner(0)
        for batch in batches[:3]:
            whole.update(*batch)
            first.update(*batch)
        second = Learner(5)
        second.load_state_dict(first.state_dict())
        for batch in batches[3:]:
            assert whole.update(*batch) == second.update(*batch)
        assert all(map(np.array_equal, whole.parameters, second.parameters))
        assert all(map(np.array_equal, whole.moments, second.moments))


def rehearse(gain, rounds=300, seed=0, **options):
    """A scheduler after so many rounds, and its last selection.

    The mean reward grows by `gain(mean entropy of the chosen rows, rng)` a round, and all
    |advantages| are 1: what a rollout is worth shows in the rounds' rewards alone.
    """
    options = {"warmup": rounds, "entropy_weight": 0, "learning_rate": 3e-3, **options}
    rng = np.random.default_rng(seed)
    slot = Scheduler(10, "round", **options)
    level = 0.0
    for number in range(1, rounds + 1):
        entropy = rng.random(32)
        table = pool(
            np.full(32, level),
            ["a"] * 32,
            number=number,
            entropy=entropy,
            advantage=rng.choice([-1, 1], 32),
        )
        selection = slot.select(table, Context(seed=number))
        level += gain(entropy[selection.rows].mean(), rng)
    return slot, selection


def score_follows_entropy(gain, seed):
    """Correlation of the last scores with the entropies they were given."""
    _, selection = rehearse(gain, seed=seed)
    scores = selection.columns["score"]
    return np.corrcoef(scores, selection.columns["feature_entropy"])[0, 1]


class TestScheduler:
    def test_sizes_by_scope(self):
        table = pool([1, 0] * 20, np.repeat(["a", "b", "c", "d"], 10))
        kept = kept_rows(Scheduler(30), table)
        assert np.bincount(kept // 10).tolist() == [3, 3, 3, 3]
        assert (np.diff(kept) > 0).all()
        assert len(kept_rows(Scheduler(29, "round"), table)) == 11
        assert len(kept_rows(Scheduler(1), table)) == 4
        assert len(kept_rows(Scheduler(100), table)) == 40
        assert len(kept_rows(Scheduler(100), table.take([]))) == 0

    def test_size_of_a_buffer_is_that_of_a_round(self):
        ages = np.repeat([0, 1, 2, 3], 10)
        table = pool([1, 0] * 20, np.repeat(["a", "b", "c", "d"], 10), ages, number=4)
        warming_up = kept_rows(Scheduler(scope="buffer"), table)
        assert warming_up.tolist() == list(range(10)), "the newest"
        half = Scheduler(50, scope="buffer", warmup=0, start=0, floor=0)
        assert len(kept_rows(half, table)) == 5

    def test_exploring_draws_among_equally_new_rollouts_by_lot(self):
        table = pool([1, 0] * 128, np.repeat(np.arange(32).astype(str), 8))
        kept = kept_rows(Scheduler(30, "round"), table)
        assert len(kept) == 76
        # By the order of the table these would be the rollouts of the first ten problems.
        assert len(set(kept // 8)) > 20
        assert kept_rows(Scheduler(30, "round"), table).tolist() == kept.tolist()

    def test_the_reward_of_a_round_is_the_verdict_where_there_are_further_parts(self):
        slot = Scheduler(100, "round")
        for number, correct in ((1, [1.0, 0, 0, 0]), (2, [1.0, 1, 0, 0])):
            penalised = np.array(correct) - 0.5 * number
            table = pool(penalised, ["a"] * 4, number=number)
            table = table.assign(reward_correct=np.array(correct))
            slot.select(table, Context(round=number))
        z = (0.25 - 0.225) / np.sqrt(0.1 + 0.9 * 0.025**2)
        assert slot.metrics()["scheduler_reward"] == pytest.approx(1 / (1 + np.exp(-z)))

    def test_whole_mini_batches(self):
        table = pool([1, 0] * 512, np.repeat(np.arange(128).astype(str), 8))
        assert len(kept_rows(Scheduler(30, "round"), table)) == 307
        in_batches = Scheduler(30, "round", mini_batch=128).select(table, Context())
        assert len(in_batches.rows) == 256, "appendix D"
        assert in_batches.mini_batch == 128
        assert len(kept_rows(Scheduler(30, "round", mini_batch=512), table)) == 307
        assert len(kept_rows(Scheduler(30, mini_batch=100), table)) == 200

    def test_learns_after_the_next_round_and_not_before(self):
        slot = Scheduler(100, "round", learning_rate=1e-2)
        slot.select(pool([1, 0, 0, 0], ["a"] * 4), Context())
        first = slot.state_dict()
        assert np.isnan(slot.metrics()["scheduler_reward"])
        assert slot.metrics()["scheduler_epsilon"] == 1

        slot.select(pool([1, 1, 0, 0], ["a"] * 4, number=2), Context(round=2))
        # The gain is .25, and its moving average already holds it: mean .225.
        z = (0.25 - 0.225) / np.sqrt(0.1 + 0.9 * 0.025**2)
        assert slot.metrics()["scheduler_reward"] == pytest.approx(1 / (1 + np.exp(-z)))
        second = slot.state_dict()
        assert second["average"] == pytest.approx([0.225, 0.1 + 0.9 * 0.025**2])
        before, after = (state["learner"]["parameters"] for state in (first, second))
        assert not all(map(np.array_equal, before, after))

    def test_a_round_without_new_rollouts_waits(self):
        slot = Scheduler(100, "buffer")
        slot.select(pool([1, 0], ["a"] * 2), Context())
        only_old = pool([1, 0], ["a"] * 2, [1, 1], number=2)
        assert len(kept_rows(slot, only_old)) == 0
        assert "pending" in slot.state_dict()
        slot.select(pool([1, 1], ["a"] * 2, number=3), Context(round=3))
        z = (0.5 - 0.45) / np.sqrt(0.1 + 0.9 * 0.05**2)
        assert slot.metrics()["scheduler_reward"] == pytest.approx(1 / (1 + np.exp(-z)))

    def test_state_goes_on_exactly(self):
        tables = [
            pool(np.random.default_rng(i).integers(2, size=16), ["a", "b"] * 8, number=i, seed=i)
            for i in range(1, 7)
        ]
        whole = Scheduler(25, warmup=0, start=0.5, learning_rate=1e-2)
        first = whole.clone()
        second = whole.clone()
        for i, table in enumerate(tables[:3]):
            whole.select(table, Context(seed=i))
            first.select(table, Context(seed=i))
        second.load_state_dict(first.state_dict())
        for i, table in enumerate(tables[3:]):
            of_whole = whole.select(table, Context(seed=9 + i))
            of_second = second.select(table, Context(seed=9 + i))
            assert np.array_equal(of_whole.rows, of_second.rows)
            assert np.array_equal(of_whole.columns["score"], of_second.columns["score"])
        assert Scheduler().state_dict()["learner"] == {}
        assert whole == second

    @pytest.mark.slow
    def test_a_paying_feature_is_found_from_round_rewards(self):
        paying = [score_follows_entropy(lambda entropy, rng: entropy - 0.5, i) for i in range(3)]
        noise = [score_follows_entropy(lambda entropy, rng: rng.normal(), i) for i in range(3)]
        assert np.mean(paying) > 0.6
        assert abs(np.mean(noise)) < 0.5

    def test_a_round_done_again_is_the_same(self):
        slot = Scheduler(50, "round", warmup=0)
        slot.select(pool([1, 0, 0, 0], ["a"] * 4), Context())
        table = pool([1, 1, 0, 1], ["a"] * 4, number=2)
        first = slot.select(table, Context(round=2))
        measured = slot.metrics()
        learnt = slot.state_dict()

        again = slot.select(table, Context(round=2))
        assert np.array_equal(first.rows, again.rows)
        assert np.array_equal(first.columns["score"], again.columns["score"])
        assert slot.metrics()["scheduler_reward"] == measured["scheduler_reward"]
        assert slot.state_dict()["average"] == learnt["average"]
        assert slot.state_dict()["learner"]["steps"] == learnt["learner"]["steps"] == 1

    def test_ablations(self):
        slot, _ = rehearse(lambda entropy, rng: 0.01, rounds=3, scores="random", ema=False)
        assert np.isnan(slot.metrics()["scheduler_error"])
        assert slot.metrics()["scheduler_reward"] == pytest.approx(0.01)
        charged, _ = rehearse(lambda entropy, rng: 0.01, rounds=3, ema=False, entropy_weight=100.0)
        assert charged.metrics()["scheduler_reward"] != pytest.approx(0.01)

    def test_without_a_moving_average_none_is_learnt(self):
        slot, _ = rehearse(lambda entropy, rng: 0.01, rounds=3, ema=False)
        assert slot.state_dict()["average"] == (0.0, 1.0)

    def test_constant_features_are_neutral(self):
        slot = Scheduler(50, "round", warmup=0, start=0, floor=0)
        table = pool(np.ones(6), ["a"] * 6).assign(response=Ragged.of([[5]] * 6, np.int32))
        selection = slot.select(table, Context())
        # Their scores are equal, so that lots decide which half is kept.
        assert len(selection.rows) == 3
        assert not selection.columns["score"].any()

    def test_it_is_a_selector_that_measures_against_whole_groups(self):
        assert selectors.Scheduler is Scheduler
        assert Scheduler().select(pool([1, 0], ["a"] * 2), Context()).baseline == "group"

    def test_what_it_needs_of_a_trainer(self):
        assert Scheduler().needs == {"entropy", "update_statistics"}
        assert Scheduler(mini_batch=4).needs == {"entropy", "update_statistics", "mini_batch"}

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"keep": 0}, "keep=0"),
            ({"keep": 101}, "keep=101"),
            ({"keep": float("nan")}, "keep=nan"),
            ({"scope": "world"}, "scope='world': allowed are 'group'"),
            ({"scores": "best"}, "scores='best'"),
            ({"scaling": "log"}, "scaling='log'"),
            ({"order": "now"}, "order='now'"),
            ({"optimizer": "lion"}, "optimizer='lion'"),
            ({"mini_batch": 0}, "mini_batch=0"),
            ({"depth": 1}, "depth=1"),
            ({"floor": 2}, "floor=2"),
            ({"learning_rate": 0}, "learning_rate=0"),
            ({"warmup": -1}, "warmup=-1"),
        ],
    )
    def test_bad_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            Scheduler(**options)
