"""Where an earlier version differed from the five papers: a test for each point that was mended."""

import numpy as np
import pytest
import torch
from conftest import Gradients, hand_made
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.catalogue.rlep import Experience
from workbench.grpo import grpo_step
from workbench.objectives import policy_loss, token_weights
from workbench.policies.batching import mini_batches
from workbench.records.round_stats import round_stats
from workbench.rollouts import Context, Rollouts
from workbench.rules.allocators import DynamicSampling, Knapsack
from workbench.rules.replay import CorrectResponses
from workbench.rules.rewards import Correct
from workbench.rules.scheduler import Learner, Scheduler, round_reward
from workbench.rules.selectors import Rejection


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("slot", [CorrectResponses("recompute"), Experience(each=1)], ids=repr)
def test_recomputed_responses_start_at_ratio_one_at_every_temperature(slot, temperature, policy):
    """AR3PO, option I: nothing is clipped and nothing differs in the first step on them."""
    slot = slot.clone()
    sampling = wb.policies.Sampling(temperature=temperature, max_new_tokens=12)
    sampled = policy.generate(["1+2="], [4], sampling, seed=3)
    sampled = sampled.assign(gradient=np.ones(4, bool), uses=np.zeros(4, int))
    first = sampled.assign(correct=np.ones(4, bool), reward=np.ones(4), round=np.ones(4, int))
    slot.feedback(first, Context(round=1))
    wrong = sampled.assign(correct=np.zeros(4, bool), reward=np.zeros(4), round=np.full(4, 2))
    with torch.no_grad():  # the policy moves between the two visits
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    context = Context(round=2, policy=policy, temperature=temperature)
    rollouts, rows = slot.join(wrong, np.arange(4), context)
    old = rollouts.take(rows[rows >= 4])
    assert len(old) == 1

    stats = grpo_step(policy, Gradients(policy), old, np.ones(1), temperature=temperature)
    assert stats.logprob_diff[0] < 1e-5
    assert stats.clip_ratio[0] == 0


def test_pods_has_a_mean_over_rollouts_and_a_symmetric_clip():
    """L_PODS, section 3.2: a response of one token weighs as much as one of three."""
    objective = wb.methods.pods(4, 2).objective
    assert objective.loss_aggregation == "rollout"
    assert objective.clip[0] == objective.clip[1]
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ratios = torch.tensor([[1.5, 1.0, 1.0], [1.0, 1.0, 1.0]])
    loss = policy_loss(
        ratios.log(),
        torch.zeros(2, 3),
        torch.tensor([1.0, -1.0]),
        mask,
        clip=objective.clip,
        loss_aggregation=objective.loss_aggregation,
    )
    assert loss.item() == pytest.approx(-((1.2 + 1 + 1) / 3 - 1) / 2)


def test_aero_weighs_a_rescued_pair_like_a_large_group():
    """Equations 2 and 8 average within a problem first."""
    aggregation = wb.methods.aero().objective.loss_aggregation
    groups = ["pair"] * 2 + ["large"] * 8
    weights = token_weights(torch.ones(10, 3, dtype=torch.bool), aggregation, groups=groups)
    assert weights[:2].sum().item() == pytest.approx(1 / 2)
    assert weights[2:].sum().item() == pytest.approx(1 / 2)


def test_a_prompt_counts_once_for_every_request():
    """AERO, equation 23: a rescue computes the prompt of five tokens again."""
    rollouts = hand_made([0.0, 0, 1, 1], list("aaab"), lengths=[2, 3, 4, 1]).assign(
        stage=[0, 0, 1, 0],
        round=np.ones(4, int),
        selected=np.ones(4, bool),
        trained=np.zeros(4, bool),
        gradient=np.ones(4, bool),
        advantage=np.zeros(4),
        logprob_diff=np.full(4, np.nan),
        entropy=np.zeros(4),
    )
    row = round_stats(1, rollouts, [], 1000, 1e-3)
    # Requests: both rollouts of a together, the third of a, and b.
    assert row["tokens_sampled"] == (2 + 3 + 4 + 1) + 3 * 5


def test_the_moving_average_of_cbs_holds_the_gain_that_it_standardises():
    """Equation 10 as printed: mean and variance already hold the gain of this round."""
    assert Scheduler().order == "before"
    reward, average = round_reward((0.3, 0.0), (0.5, 0.0), (0.0, 1.0))
    mean = 0.9 * 0.2
    variance = 0.1 + 0.9 * (0.2 - mean) ** 2
    assert average == pytest.approx((mean, variance))
    assert reward == pytest.approx(1 / (1 + np.exp(-(0.2 - mean) / np.sqrt(variance))))


def test_the_rewards_of_cbs_are_over_all_that_was_sampled():
    """Definition 3.3: groups that dynamic sampling dropped count in V_t and E_t as well."""
    sampled = Rollouts(
        problem=list("aaaabb"),
        reward=[1.0, 0, 0, 0, 0, 0],
        correct=[True] + [False] * 5,
        entropy=[0.2, 0.2, 0.2, 0.2, 0.5, 0.5],
        round=np.ones(6, int),
    )
    mixed = sampled.take(np.arange(4)).assign(
        advantage=np.array([1.7, -0.6, -0.6, -0.6]), age=np.zeros(4)
    )
    scheduler = Scheduler()
    scheduler.select(mixed, Context(round=1, max_new_tokens=8, sampled=sampled))
    assert scheduler.pending["before"] == pytest.approx([1 / 6, (4 * 0.2 + 2 * 0.5) / 6])


def test_the_network_of_cbs_starts_as_in_appendix_b():
    """The variance of the weights is 2 / width, in the last layer 1 / width."""
    width = 1000
    first, _, hidden, _, last, _ = Learner(width=width).parameters
    assert first.shape == (10, width)
    assert first.var() == pytest.approx(2 / width, rel=0.1)
    assert hidden.var() == pytest.approx(2 / width, rel=0.02)
    assert last.var() == pytest.approx(1 / width, rel=0.2)


def test_cbs_schedules_the_whole_round_by_default():
    """The published numbers of CBS* are pooled (appendix D)."""
    assert wb.methods.cbs().selector.scope == "round"


@given(st.lists(st.integers(1, 30), min_size=4, max_size=20), st.integers(0, 99))
def test_mini_batches_have_nearly_equally_many_rows_where_problems_differ(sizes, seed):
    """Whole problems, as under Knapsack RL: no part is off by more than the largest problem."""
    ids = np.repeat([f"p{i}" for i in range(len(sizes))], sizes)
    rollouts = Rollouts(problem=ids)
    parts = mini_batches(rollouts, 3, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(ids)))
    mean = len(ids) / 3
    for rows in parts:
        assert abs(len(rows) - mean) <= max(sizes)
        whole = np.isin(ids, ids[rows])
        assert whole.sum() == len(rows)


def test_aero_can_trim_groups_with_many_right_answers():
    """Table 8: five right and three wrong become 3 + 3; without the variant all eight stay."""
    rollouts = Rollouts(
        problem=["a"] * 8, correct=[True] * 5 + [False] * 3, reward=[1.0] * 5 + [0.0] * 3
    )
    trimmed = wb.methods.aero(trim_high=True).selector.select(rollouts, Context()).rows
    assert rollouts.correct[trimmed].tolist() == [True] * 3 + [False] * 3
    assert len(Rejection().select(rollouts, Context()).rows) == 8


def test_knapsack_with_dynamic_sampling_keeps_the_settings_of_appendix_f():
    method = wb.methods.knapsack(dynamic_sampling=True)
    assert isinstance(method.allocator, DynamicSampling)
    assert isinstance(method.allocator.within, Knapsack)
    assert (method.advantage.eps, method.advantage.clip) == (1e-6, 5.0)
    assert method.reward == (Correct(),)  # no penalty on overlong responses, which is DAPO's


def test_both_scales_of_the_posterior_of_aero():
    """None of 16 right: u = 1/18. Dividing by the posterior's own deviation gives 1.06."""
    rollouts = Rollouts(problem=["a"] * 16, reward=np.zeros(16), correct=np.zeros(16, bool))
    bernoulli = wb.methods.aero().advantage(rollouts, Context())
    posterior = wb.methods.aero(scale="posterior").advantage(rollouts, Context())
    assert bernoulli == pytest.approx(np.full(16, -np.sqrt(1 / 17)))
    assert posterior == pytest.approx(np.full(16, -np.sqrt(19 / 17)))
    assert posterior[0] == pytest.approx(-1.06, abs=5e-3)
