"""The adapter for verl.

The first part runs without verl. What needs it runs in verl's own environment: `make test-verl`.
"""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from small_methods import NAMES
from verl_cases import INSTALLED, data_proto

from examples.verl_loop import play
from workbench import adapters, methods, verl
from workbench.adapters import Driver
from workbench.methods import Method
from workbench.objectives import Objective, policy_loss
from workbench.pools import Problem
from workbench.rollouts import NonFinite, Ragged, Rollouts
from workbench.rounds import Round
from workbench.rules.advantages import (
    GroupNormalized,
    batch_normalized,
    group_normalized,
    leave_one_out,
    posterior,
)
from workbench.rules.allocators import (
    DynamicSampling,
    Knapsack,
    Staged,
    SuccessRates,
)
from workbench.rules.curricula import ShuffledEpochs
from workbench.rules.replay import CorrectResponses
from workbench.rules.rewards import Correct, Overlong
from workbench.rules.selectors import MaxVariance
from workbench.slots import COURSE_NEEDS, Selection, Slot
from workbench.utils.descriptions import describe
from workbench.verl import compatibility, functions
from workbench.verl import settings as verl_settings

EXAMPLES = Path(__file__).parents[1] / "examples"
needs_verl = pytest.mark.skipif(not INSTALLED, reason="verl is not installed here: make test-verl")


def chats(texts):
    """Prompts as verl's data sets hold them."""
    prompts = np.empty(len(texts), dtype=object)
    prompts[:] = [[{"role": "user", "content": text}] for text in texts]
    return prompts


class Shortest(Slot):
    """A selector that is not this package's."""

    def __init__(self, m):
        self.m = m

    def select(self, rollouts, context):
        return Selection(np.argsort(rollouts.lengths, kind="stable")[: self.m])


# Versions


@pytest.mark.skipif(INSTALLED, reason="verl is installed here")
@pytest.mark.parametrize(
    "use", [verl.register, partial(importlib.import_module, "workbench.verl.v1")]
)
def test_without_verl_one_line_says_how_to_get_it(use):
    with pytest.raises(ImportError, match=r"^verl is missing; .*pip install .*verl==0\.9\.1"):
        use()


@pytest.mark.long
@pytest.mark.parametrize("method", ["podz", "pods"])
@pytest.mark.skipif(INSTALLED, reason="verl is installed here")
def test_the_example_makes_no_folder_for_what_it_cannot_run(tmp_path, method):
    out = tmp_path / "out"
    command = [sys.executable, str(EXAMPLES / "verl_run.py"), "--method", method, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES.parent)
    assert done.returncode
    assert {"podz": "pods", "pods": "make test-verl"}[method] in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.10.0", "1.0", "0.10.0.dev0"])
def test_whatever_needs_verl_asks_for_its_version(version, monkeypatch):
    monkeypatch.setattr(compatibility, "installed_version", lambda name: version)
    with pytest.raises(ImportError, match=rf"^verl {version} is installed.*verl==0\.9\.1"):
        verl.register()


@pytest.mark.parametrize("version", ["0.9.1", "0.9.1.post1", "0.9.2"])
def test_patch_releases_fit(version, monkeypatch):
    monkeypatch.setattr(compatibility, "installed_version", lambda name: version)
    compatibility.check_installed("TransferQueue")


# Prompts and verdicts


def test_ids_follow_the_content_of_prompts():
    first, second, again = map(verl.problem_id, chats(["1+1=", "1+2=", "1+1="]))
    assert first == again != second
    other_order = [{"content": "1+1=", "role": "user"}]
    as_array = np.array([{"role": "user", "content": "1+1="}], dtype=object)
    assert verl.problem_id(other_order) == verl.problem_id(as_array) == first
    with pytest.raises(ValueError, match=r"^prompt"):
        verl.problem_id([{"role": "user", "content": object()}])


def test_a_prompt_that_comes_again_in_a_round_is_another_problem():
    a, b = map(verl.problem_id, ["a", "b"])
    problems = adapters.as_problems(["a", "b", "a", "a"])
    assert [problem.id for problem in problems] == [a, b, f"{a}#2", f"{a}#3"]
    (further,) = adapters.as_problems(["b"], taken=[a, b])
    assert further.id == f"{b}#2"


def test_acc_says_what_is_correct_and_without_it_the_reward():
    reward = np.array([0.5, 0.5, 1.2, 0.0])
    verdict = functions.Verdict(solved=0.5)
    assert verdict(reward, [None] * 4).tolist() == [True, True, True, False]
    # verl keeps rewards in single precision, in which 0.9 is a little less.
    at_the_bar = np.array([0.9], np.float32).astype(np.float64)
    assert functions.Verdict(solved=0.9)(at_the_bar, [None]).tolist() == [True]
    assert verdict(reward, [False, 1.0, 0, np.True_]).tolist() == [False, True, False, True]
    assert verdict(reward, [None, 0, None, 1]).tolist() == [True, False, True, True]
    # Nothing but 1 says that it is.
    assert verdict(reward, [0.5, 2, -1, np.nan]).tolist() == [False] * 4


def test_rewards_that_do_not_say_what_is_correct_warn_once(caplog):
    verdict = functions.Verdict()
    assert verdict(np.array([0.0, 1.0]), [None, None]).tolist() == [False, True]
    assert verdict(np.array([0.3]), [1]).tolist() == [True]
    assert not caplog.records
    assert verdict(np.array([0.3, 1.2]), [None, None]).tolist() == [False, True]
    verdict(np.array([0.3]), [None])
    (record,) = caplog.records
    assert "a reward is 0.3" in record.getMessage() and "`solved`" in record.getMessage()


def test_rewards_stay_graded_where_nobody_needs_a_verdict(caplog):
    verdict = functions.Verdict(needed=False)
    assert verdict(np.array([0.0, 1.0]), [None, None]).tolist() == [0, 1]
    found = verdict(np.array([0.3, 0.3]), [None, 1])
    assert np.isnan(found[0]) and found[1] == 1
    assert np.isnan(verdict(np.array([1.0]), [None])).all()
    assert not caplog.records


def test_parts_of_the_reward_come_on_top_of_verls():
    method = methods.dapo(4).but(reward=(Correct(), Overlong(limit=10, buffer=0.5)))
    rollouts = Rollouts(
        ["p", "p", "p"],
        reward=[1.0, 0.0, 1.0],
        response=Ragged.of([range(5), range(10), range(8)], np.int32),
    )
    driver = Driver(method, seed=0)
    driver.begin(max_new_tokens=10)
    problems = [Problem("p", "", "")]
    table = driver.score(rollouts, problems, np.array([2]), stage=1)
    assert table.reward.tolist() == pytest.approx([1.0, -1.0, 0.4])
    assert table["reward_correct"].tolist() == [1, 0, 1]
    assert (table.draw.tolist(), table.stage.tolist()) == ([2, 3, 4], [1, 1, 1])
    with pytest.raises(NonFinite, match="nan"):
        driver.score(rollouts.assign(reward=[1.0, np.nan, 0]), problems, np.array([0]), 0)


# What verl multiplies ratios with


def outcome(advantages, weights=None, gradient=None, lengths=(2, 1, 1, 2), groups="aabb"):
    """A round of four rollouts, all selected."""
    rollouts = Rollouts(
        list(groups),
        response=Ragged.of([np.zeros(length) for length in lengths], np.int32),
        columns={"gradient": np.ones(4, bool) if gradient is None else np.array(gradient)},
    )
    return Round(rollouts, np.arange(4), advantages, weights)


def factors(objective, multiple=1, **options):
    """What `row_advantages` makes of advantages of 1, one number a rollout."""
    rows = functions.row_advantages(outcome(np.ones(4), **options), objective, multiple)
    return [rows[i].tolist() for i in range(4)]


def test_advantages_are_spread_over_the_tokens_of_their_rows():
    rows = functions.row_advantages(outcome(np.array([1.0, -1, 0.5, 0])), Objective(), 1)
    assert [rows[i].tolist() for i in range(4)] == [[1, 1], [-1], [0.5], [0, 0]]


def test_advantages_by_token_stay_by_token():
    advantages = Ragged.of([[1, 2], [3], [4], [5, 6]], np.float64)
    rows = functions.row_advantages(outcome(advantages, np.array([1, 2, 1, 0.5])), Objective(), 1)
    assert [rows[i].tolist() for i in range(4)] == [[1, 2], [6], [4], [2.5, 3]]


def test_weights_and_rows_without_gradient_are_factors():
    options = {"weights": np.array([0.5, 1, 2, 1]), "gradient": [True, False, True, True]}
    assert factors(Objective(), **options) == [[0.5, 0.5], [0], [2], [1, 1]]


def test_padding_is_made_up_for_where_rows_are_counted():
    """Four rows in mini-batches of three make six: verl divides by six, and four are meant."""
    assert factors(Objective(), multiple=3) == factors(Objective())
    for aggregation in ("rollout", "constant"):
        rows = factors(Objective(loss_aggregation=aggregation), multiple=3)
        assert rows == [[1.5, 1.5], [1.5], [1.5], [1.5, 1.5]]


def test_the_mean_over_groups_weights_rows_by_their_group():
    """Three of four rows are of one group: each counts (4 / 2) / 3, the other one 4 / 2."""
    rows = factors(Objective(loss_aggregation="group"), groups="aaab")
    assert np.concatenate(rows) == pytest.approx([2 / 3] * 4 + [2, 2])


# Estimators


@pytest.mark.parametrize(
    "name, function",
    [
        ("workbench_grpo", group_normalized),
        ("workbench_rloo", leave_one_out),
        ("workbench_aero", posterior),
        ("workbench_reinforce", batch_normalized),
        ("workbench_dr_grpo", partial(group_normalized, scale=False)),
        ("workbench_knapsack", partial(group_normalized, eps=1e-6, clip=5.0)),
    ],
)
def test_estimators_are_our_functions_at_response_tokens(name, function):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    scores = torch.tensor([[0, 1.0, 0], [0, 0, 0], [0.5, 0, 0.5], [0, 1.0, 0], [1.0, 0, 0]])
    uids = np.array(["x", "y", "y", "x", "x"], dtype=object)
    advantages, returns = verl.ESTIMATORS[name](
        token_level_rewards=scores, response_mask=mask, index=uids, config=None
    )
    expected = function(np.array([1.0, 0, 1, 1, 1]), uids.astype(str))
    np.testing.assert_allclose(advantages, expected[:, None] * mask.numpy(), rtol=1e-6)
    assert torch.equal(advantages, returns) and advantages is not returns


def test_rewards_of_several_tokens_that_sum_to_the_same_have_no_advantage():
    scores = torch.tensor([[0.1, 0.6], [0.7, 0.0], [0.0, 0.7], [0.6, 0.1]])
    for name in ("workbench_grpo", "workbench_rloo", "workbench_reinforce"):
        advantages, _ = verl.ESTIMATORS[name](scores, torch.ones(4, 2), np.array(["x"] * 4))
        assert not advantages.any(), name


def test_rows_of_padding_are_no_rollouts():
    """verl fills a batch up before advantages are taken."""
    scores = torch.tensor([[1.0], [1.0], [0.0], [1.0], [0.0], [0.0]])
    mask = torch.tensor([[1], [1], [1], [1], [0], [0]])
    uids = np.array(["x", "x", "y", "y", "pad-0", "pad-1"], dtype=object)
    for name, estimate in verl.ESTIMATORS.items():
        if name == "workbench":
            continue  # the method's own, which come from verl's queue
        alone, _ = estimate(scores[:4], mask[:4], uids[:4])
        padded, _ = estimate(scores, mask, uids)
        assert torch.equal(padded[:4], alone), name
        assert not padded[4:].any(), name


def test_advantages_by_hand():
    scores = torch.tensor([[1.0], [0.0], [0.0], [0.0], [1.0]])
    index = np.array(["p", "p", "p", "p", "q"], dtype=object)

    def column(name):
        advantages, _ = verl.ESTIMATORS[name](scores, torch.ones(5, 1), index)
        return advantages[:, 0].tolist()

    assert column("workbench_dr_grpo") == [0.75, -0.25, -0.25, -0.25, 0]
    assert column("workbench_rloo") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 0])


# Which methods verl carries


@pytest.mark.parametrize(
    "method, rows",
    [
        (methods.pods(32, 8), 8),
        (methods.knapsack(5, rates="epoch"), 5),
        (methods.ar3po(k=4, mode="direct"), 4),
        (methods.cbs("dapo", "round", n=8), 2),
        (methods.pilot_commit(4, 12, solved=None), 16),
        (methods.dapo().but(allocator=DynamicSampling(within=Knapsack(6))), 6),
    ],
)
def test_configuration_brings_the_method_back(method, rows):
    keys = verl.configuration(method)
    assert keys["actor_rollout_ref.rollout.n"] == rows
    found = verl.method_of({"method": keys["trainer.v1.sampler.sampler_kwargs.method"]})
    assert describe(found) == describe(method)


def reason_not_carried(method):
    """How the message begins for a method that verl cannot carry; None for the others."""
    if "problem_choice" in method.needs:
        return "^curriculum="
    if method.needs & COURSE_NEEDS:
        return "^course="
    if method.objective.surrogate != "clip":
        return f"^surrogate='{method.objective.surrogate}'"
    return None


@pytest.mark.parametrize("name", NAMES)
def test_every_paper_is_carried_or_says_what_it_needs(name):
    method = getattr(methods, name)()
    reason = reason_not_carried(method)
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            verl.configuration(method)
        return
    keys = verl.configuration(method)
    assert keys["actor_rollout_ref.rollout.n"] >= 2
    found = verl.method_of({"method": keys["trainer.v1.sampler.sampler_kwargs.method"]})
    assert describe(found) == describe(method)


class Chosen(ShuffledEpochs):
    def choose(self, pool, n, context):
        return pool[:n]


@pytest.mark.parametrize(
    "method, reason",
    [
        (methods.cbs(scope="buffer"), r"replay=Buffer.*\(update_statistics\)"),
        (methods.cbs(mini_batch=128), r"selector=Scheduler.*\(mini_batch\)"),
        (methods.knapsack(rates="predictor"), r"allocator=Knapsack.*\(prompt_states\)"),
        (
            methods.dapo().but(
                allocator=DynamicSampling(within=Knapsack(rates=SuccessRates("predictor")))
            ),
            r"allocator=DynamicSampling.*\(prompt_states\)",
        ),
        (methods.grpo().but(curriculum=Chosen()), r"curriculum=.*\(problem_choice\)"),
        (
            methods.ar3po().but(objective=Objective(entropy=0.01)),
            r"replay=CorrectResponses.*\(rows_without_gradient\)",
        ),
    ],
)
def test_what_verl_cannot_carry_is_refused_by_need(method, reason):
    with pytest.raises(ValueError, match=reason):
        verl.configuration(method)


def test_update_statistics_are_missed_only_by_old_responses():
    """Without replay every candidate of the scheduler is new, and no update has seen it."""
    assert "update_statistics" in methods.cbs().selector.needs
    verl.check(methods.cbs())
    with pytest.raises(ValueError, match=r"selector=Scheduler.*\(update_statistics\)"):
        verl.check(methods.cbs().but(replay=CorrectResponses()))


def test_the_objective_in_verls_words():
    objective = Objective(clip=(0.1, 0.3), loss_aggregation="constant")
    keys = verl.configuration(methods.dr_grpo().but(objective=objective))
    actor = {name.rpartition(".")[2]: value for name, value in keys.items() if ".actor." in name}
    assert actor == {
        "loss_mode": "workbench_token",
        "clip_ratio_low": 0.1,
        "clip_ratio_high": 0.3,
        "entropy_coeff": 0.0,
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "loss_scale_factor": "${data.max_response_length}",
        "use_kl_loss": False,
    }
    keys = verl.configuration(methods.aero(kl=0.02))
    assert keys["actor_rollout_ref.actor.kl_loss_coef"] == 0.02
    assert keys["actor_rollout_ref.actor.use_kl_loss"] is True


def test_keys_that_only_some_needs_bring():
    rollout = "actor_rollout_ref.rollout"
    assert verl.configuration(methods.dapo())["data.gen_batch_size"] == 1
    assert verl.configuration(methods.cbs())[f"{rollout}.free_cache_engine"] is False
    direct = verl.configuration(methods.ar3po(mode="direct"))
    assert direct["algorithm.rollout_correction.bypass_mode"] is True
    assert direct[f"{rollout}.calculate_log_probs"] is True
    further = {
        "data.gen_batch_size",
        f"{rollout}.free_cache_engine",
        f"{rollout}.calculate_log_probs",
    }
    assert not further & verl.configuration(methods.ar3po()).keys()


def test_a_mean_over_rows_says_what_verl_does_with_other_terms(caplog):
    verl.check(methods.aero(entropy=0.0))
    assert not caplog.records
    verl.check(methods.aero(entropy=1e-3))
    assert "verl averages the KL penalty and the entropy bonus over all" in caplog.text


def test_a_method_with_slots_of_its_own_needs_a_sampler_of_its_own():
    mine = methods.grpo().but(selector=Shortest(4))
    with pytest.raises(ValueError, match=r"^method=.*sampler="):
        verl.configuration(mine)
    keys = verl.configuration(mine, sampler="my_module.MySampler")
    assert keys["trainer.v1.sampler.custom_sampler.path"] == "pkg://my_module"
    assert keys["trainer.v1.sampler.custom_sampler.name"] == "MySampler"
    assert "trainer.v1.sampler.sampler_kwargs.method" not in keys
    options = verl_settings.read_options({"seed": 3}, mine)
    assert options.method is mine and options.seed == 3
    with pytest.raises(ValueError, match=r"^sampler_kwargs\.method='pods'"):
        verl_settings.read_options({"method": "pods"}, mine)


# What a configuration says


def test_a_paper_is_named_with_its_arguments():
    found = verl.method_of({"method": "pods", "arguments": {"n": 32, "m": 8, "clip": [0.1, 0.2]}})
    assert describe(found) == describe(methods.pods(32, 8, clip=(0.1, 0.2)))
    rates = {"is": "success_rates.SuccessRates", "kind": "fresh"}
    found = verl.method_of({"method": "knapsack", "arguments": {"rates": rates}})
    assert found.allocator.rates.kind == "fresh"


@pytest.mark.parametrize(
    "options, named",
    [
        ({"method": "pods", "argument": {}}, r"sampler_kwargs\.argument.*'arguments'"),
        ({"method": "pod"}, "method='pod'.*did you mean 'pods'"),
        ({}, "method=None"),
        ({"method": "pods", "arguments": {"k": 3}}, "k: no argument of pods"),
        ({"method": "pods", "arguments": {"n": 4, "m": 8}}, "m=8"),
        ({"method": "pods", "seed": -1}, r"sampler_kwargs\.seed=-1"),
        ({"method": "pods", "solved": "yes"}, r"sampler_kwargs\.solved='yes'"),
        ({"method": {"is": "selectors.MaxVariance", "m": 4}}, "method=MaxVariance"),
    ],
)
def test_a_wrong_configuration_is_named(options, named):
    with pytest.raises(ValueError, match=named):
        verl.method_of(options)


@pytest.mark.parametrize(
    "named",
    [
        {"is": "os.system", "command": "touch {}"},
        {"is": "verifiers.pool.Worker", "command": ["touch", "{}"]},
        {"is": "methods.Method", "name": "x", "selector": {"is": "builtins.open", "file": "{}"}},
        {"is": "advantages.OfRewards", "function": {"is": "os.mkdir", "path": "{}"}},
    ],
)
@pytest.mark.parametrize("where", ["method", "arguments"])
def test_a_configuration_from_an_unknown_hand_runs_nothing(named, where, tmp_path):
    mark = tmp_path / "ran"
    named = json.loads(json.dumps(named).replace("{}", str(mark)))
    options = {"method": named}
    if where == "arguments":
        options = {"method": "knapsack", "arguments": {"rates": named}}
    with pytest.raises(ValueError, match="not a slot value"):
        verl.method_of(options)
    assert not mark.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def mutated(description, path, value):
    """A description with one of its values replaced."""
    if not path or not isinstance(description, dict) or not description:
        return value
    name = sorted(description)[path[0] % len(description)]
    return {**description, name: mutated(description[name], path[1:], value)}


@settings(max_examples=60)
@given(
    base=st.sampled_from([methods.pods(8, 4), methods.knapsack(), methods.ar3po(), methods.cbs()]),
    path=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    value=JSON,
)
@pytest.mark.slow
def test_any_configuration_is_a_method_or_a_named_error(base, path, value):
    try:
        found = verl.method_of({"method": mutated(describe(base), path, value)})
    except ValueError:  # any other exception fails the test
        return
    assert isinstance(found, Method)


def nested(keys):
    """Dotted keys as verl's configuration holds them."""
    tree = {}
    for key, value in keys.items():
        *branches, leaf = key.split(".")
        place = tree
        for branch in branches:
            place = place.setdefault(branch, {})
        place[leaf] = value
    return tree


def flat(tree, prefix=""):
    if not isinstance(tree, dict) or prefix.endswith("sampler_kwargs."):
        return {prefix.rstrip("."): tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in flat(branch, f"{prefix}{name}.").items()
    }


def configured(method, changes=()):
    """verl's configuration of a method, with some keys changed."""
    keys = {**verl.configuration(method), "data.max_response_length": 24}
    for name, value in keys.items():
        if value == "${data.max_response_length}":
            keys[name] = 24
    return nested(keys | dict(changes))


@pytest.mark.parametrize(
    "method", [methods.pods(32, 8), methods.dr_grpo(), methods.dapo(), methods.aero(kl=0.1)]
)
def test_the_keys_of_a_method_fit_it(method):
    verl_settings.check_configuration(configured(method), method)


def test_a_scaling_that_verl_turns_off_fits_a_method_that_does_not_scale():
    off = {"algorithm.norm_adv_by_std_in_grpo": False}
    verl_settings.check_configuration(configured(methods.dr_grpo(), off), methods.dr_grpo())


def test_sizes_and_further_libraries_are_the_users():
    method = methods.pods(32, 8)
    sizes = {
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.model.external_lib": ["mine", "workbench.verl.v1"],
    }
    verl_settings.check_configuration(configured(method, sizes), method)


@pytest.mark.parametrize(
    "method, key, value",
    [
        (methods.dapo(), "actor_rollout_ref.actor.clip_ratio_high", 0.2),
        (methods.gspo(), "actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla"),
        (methods.aero(kl=0.1), "actor_rollout_ref.actor.use_kl_loss", False),
        (methods.dr_grpo(), "actor_rollout_ref.actor.loss_scale_factor", 99),
        (methods.pods(), "algorithm.adv_estimator", "grpo"),
        (methods.pods(), "trainer.checkpoint_callback_class", None),
        (methods.pods(), "trainer.v1.trainer_mode", "colocate_async"),
        (methods.dapo(), "data.gen_batch_size", 4),
        (methods.cbs(), "actor_rollout_ref.rollout.free_cache_engine", True),
        (methods.cbs(), "algorithm.rollout_correction.bypass_mode", True),
        (methods.pods(), "algorithm.norm_adv_by_std_in_grpo", False),
        (methods.pods(), "algorithm.use_kl_in_reward", True),
        (methods.pods(), "algorithm.filter_groups.enable", True),
        (methods.pods(), "trainer.v1.sampler.sync_refill_failed_groups", True),
        (methods.pods(), "skip.rollout_tq.enable", True),
        (methods.pods(), "reward.reward_model.enable", True),
    ],
)
def test_a_setting_that_is_not_the_methods_is_an_error(method, key, value):
    with pytest.raises(ValueError, match=f"^{re.escape(key)}="):
        verl_settings.check_configuration(configured(method, {key: value}), method)


def test_the_recipe_is_what_configuration_says():
    recipe = yaml.safe_load((EXAMPLES / "verl_pods.yaml").read_text())
    recipe = flat({name: branch for name, branch in recipe.items() if name != "defaults"})
    keys = verl.configuration(methods.pods(32, 8))
    named = recipe.pop("trainer.v1.sampler.sampler_kwargs")
    described = keys.pop("trainer.v1.sampler.sampler_kwargs.method")
    assert describe(verl.method_of(named)) == described
    assert recipe == keys


def test_the_recipe_that_the_guide_writes_is_the_one_of_the_examples(tmp_path, monkeypatch):
    """Printed line by line, the method would be none that verl's command line can read."""
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(block, {})
    written, recipe = (
        yaml.safe_load(path.read_text())
        for path in (Path("my_pods.yaml"), EXAMPLES / "verl_pods.yaml")
    )
    methods_of_both = [
        each["trainer"]["v1"]["sampler"].pop("sampler_kwargs") for each in (written, recipe)
    ]
    assert written == recipe
    ours, theirs = (describe(verl.method_of(each)) for each in methods_of_both)
    assert ours == theirs


# The guide


GUIDE = (Path(__file__).parents[1] / "docs/guides/verl.md").read_text()


def keys_of_guide(heading):
    """The keys and values of the first table after a heading of the guide."""
    section = GUIDE.split(f"\n### {heading}\n")[1].split("\n#")[0]
    keys = {}
    for names, values in re.findall(r"^\| (`\w.*?) \| (.*?) \|", section, re.MULTILINE):
        for name, value in zip(names.split("<br>"), values.split("<br>"), strict=True):
            keys[name.strip("`")] = yaml.safe_load(value.strip("`"))
    return keys


@pytest.mark.parametrize(
    "heading, method",
    [
        ("PODS", methods.pods(32, 8)),
        ("DAPO", methods.dapo(8)),
        ("Knapsack RL", methods.knapsack(8, low=2, up=128)),
    ],
)
def test_the_keys_of_the_guide_are_those_of_configuration(heading, method):
    keys = keys_of_guide("PODS")
    named = {
        name: keys.pop(f"trainer.v1.sampler.sampler_kwargs.{name}")
        for name in ("method", "arguments")
    }
    if heading != "PODS":
        keys |= keys_of_guide(heading)
        named = keys.pop("trainer.v1.sampler.sampler_kwargs")
    keys.pop("algorithm.filter_groups.enable", None)  # named because another value is refused
    expected = verl.configuration(method)
    described = expected.pop("trainer.v1.sampler.sampler_kwargs.method")
    assert describe(verl.method_of(named)) == described
    assert keys == expected


def test_the_guide_explains_every_metric():
    """Its own metric here, and all others in the table of the guide to TRL, to which it leads."""
    assert "(trl.md#what-is-logged)" in GUIDE
    table = (Path(__file__).parents[1] / "docs/guides/trl.md").read_text()
    explained = set()
    for row in re.findall(r"^\| (`\w.*?) \|", GUIDE + table, re.MULTILINE):
        for name in re.findall(r"`(?:workbench/)?([\w.]+)`", row):
            # `..._error` has the beginning of the name before it.
            explained.add(re.sub(r"^\.\.\.", "scheduler", name))
    assert "`seconds_schedule`" in GUIDE
    logged = {*adapters.LOGGED, "stages"}
    for name in NAMES:
        method = getattr(methods, name)()
        if reason_not_carried(method) is None:
            logged |= method.metrics().keys()
    assert logged <= explained


# What runs in verl: estimators and losses


def scored(rewards, uids, lengths=None, **columns):
    """A scored `DataProto`. The reward lies on each row's last token, as verl puts it."""
    size = len(rewards)
    lengths = torch.tensor([1 + i % 4 for i in range(size)] if lengths is None else list(lengths))
    mask = torch.arange(4) < lengths[:, None]
    scores = torch.zeros(size, 4)
    scores[torch.arange(size), lengths - 1] = torch.tensor(rewards, dtype=torch.float32)
    tensors = {
        "responses": torch.arange(size * 4).reshape(size, 4) * mask,
        "response_mask": mask.long(),
        "token_level_scores": scores,
        "token_level_rewards": scores.clone(),
        "row": torch.arange(size),
    }
    return data_proto().from_dict(tensors, {"uid": np.array(uids, dtype=object), **columns})


# two groups, five and three rows, in mixed order
UIDS = ["a", "b", "a", "a", "b", "a", "b", "a"]
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


@needs_verl
@pytest.mark.parametrize("name", [name for name in verl.ESTIMATORS if name != "workbench"])
def test_verl_computes_our_advantages(name):
    from verl.trainer.ppo.ray_trainer import compute_advantage

    verl.register()
    verl.register()  # once more does no harm
    data = compute_advantage(scored(REWARDS, UIDS), name, config={})
    expected, _ = verl.ESTIMATORS[name](
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    assert torch.equal(data.batch["advantages"], expected)
    assert torch.equal(data.batch["returns"], expected)
    assert (data.batch["advantages"] != 0).any()


@needs_verl
def test_ours_with_verls_settings_is_verls_grpo():
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    verl.register(verls=partial(group_normalized, ddof=1, eps=1e-6))
    grpo = compute_advantage(scored(REWARDS, UIDS), AdvantageEstimator.GRPO, config={})
    ours = compute_advantage(scored(REWARDS, UIDS), "verls", config={})
    torch.testing.assert_close(ours.batch["advantages"], grpo.batch["advantages"])


def actor(objective, **info):
    """verl's actor configuration of an objective; info: of the global batch."""
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        clip_ratio_low=objective.clip[0],
        clip_ratio_high=objective.clip[1],
        loss_agg_mode=verl_settings.LOSS_AGGREGATION[objective.loss_aggregation],
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
    )
    config.global_batch_info.update(info)
    return config


@needs_verl
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token", "rollout", "constant"])
@pytest.mark.parametrize("by_token", [False, True])
def test_the_loss_in_verl_is_ours(ratio, aggregation, by_token):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    verl.register()
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(6, 5, generator=generator)
    new = (old + 0.5 * torch.randn(6, 5, generator=generator)).requires_grad_()
    advantages = torch.randn(6, 5 if by_token else 1, generator=generator).expand(6, 5)
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 5])[:, None]
    objective = Objective((0.1, 0.3), ratio, aggregation)
    config = actor(objective)
    loss, metrics = get_policy_loss_fn(f"workbench_{ratio}")(
        old,
        new,
        advantages * mask,
        mask.long(),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    expected = policy_loss(
        new,
        old,
        advantages,
        mask,
        clip=(0.1, 0.3),
        importance_sampling=ratio,
        loss_aggregation=aggregation,
    )
    torch.testing.assert_close(loss, expected)
    gradients = [
        torch.autograd.grad(value, new, retain_graph=True)[0] for value in (loss, expected)
    ]
    torch.testing.assert_close(*gradients)
    assert 0 < metrics["actor/pg_clipfrac"] < 1


# A round in a loop of one's own


def prompts(texts):
    tensors = {"row_of_prompt": torch.arange(len(texts))}
    return data_proto().from_dict(tensors, {"raw_prompt": chats(texts)})


class Scripted:
    """Generates: the next reward of each prompt comes from a list."""

    def __init__(self, **rewards):
        self.rewards = {text: list(values) for text, values in rewards.items()}
        self.requests = []

    def __call__(self, wanted):
        texts = [chat[0]["content"] for chat in wanted.non_tensor_batch["raw_prompt"]]
        self.requests.append("".join(texts))
        rewards = [self.rewards[text].pop(0) for text in texts]
        return scored(rewards, texts, text=np.array(texts, dtype=object))


def rows_of(batch):
    return batch.non_tensor_batch["text"].tolist(), batch.batch["token_level_scores"].sum(
        1
    ).tolist()


def test_dynamic_sampling_goes_by_graded_rewards():
    method = methods.dapo(2, max_draws=1, overlong=0.0)
    scripted = {"a": [0.2, 0.2], "b": [0.2, 0.7], "c": [0.7, 0.9]}
    once = partial(play, method, prompts(list("abc")), step=1, more=lambda n: None)
    batch = once(Scripted(**scripted))
    assert rows_of(batch) == (["b", "b", "c", "c"], pytest.approx([0.2, 0.7, 0.7, 0.9]))
    assert "workbench/correct" not in batch.meta_info["metrics"]
    # Where it is said what is correct, rewards that differ are not enough.
    batch = once(Scripted(**scripted), solved=0.5)
    assert (
        rows_of(batch)[0] == ["b", "b"] and batch.meta_info["metrics"]["workbench/correct"] == 0.5
    )


def test_pods_keeps_rows_with_everything_they_have():
    generate = Scripted(a=[1, 0, 0, 0, 1], b=[0, 0, 1, 0, 0])
    batch = play(methods.pods(5, 2), prompts(["a", "b"]), generate, step=1)
    assert generate.requests == ["aaaaabbbbb"]
    assert rows_of(batch) == (["a", "a", "b", "b"], [1, 0, 0, 1])
    assert batch.batch["row"].tolist() == [0, 1, 5, 7]
    assert batch.batch["advantages"][:, 0].tolist() == [1, -1, -1, 1]
    assert torch.equal(batch.batch["advantages"] != 0, batch.batch["response_mask"] == 1)
    first, second = map(verl.problem_id, chats(["a", "b"]))
    assert batch.non_tensor_batch["uid"].tolist() == [first, first, second, second]
    metrics = batch.meta_info["metrics"]
    assert metrics["workbench/rollouts"] == 10 and metrics["workbench/selected"] == 4
    assert metrics["workbench/correct"] == 0.3 and metrics["workbench/stages"] == 1


def test_dynamic_sampling_draws_further_prompts():
    generate = Scripted(a=[1, 1], b=[0, 0], c=[1, 0], d=[0, 0])
    method = methods.dapo(2, overlong=0.0).but(allocator=DynamicSampling(2, groups=1, max_draws=2))
    drawn = []

    def more(n):
        drawn.append(n)
        return prompts(["c", "d"])

    batch = play(method, prompts(["a", "b"]), generate, step=1, more=more)
    assert drawn == [2] and generate.requests == ["aabb", "ccdd"]
    assert rows_of(batch) == (["c", "c"], [1, 0])
    with pytest.raises(ValueError, match=r"\(more_problems\), which this loop does not provide"):
        play(method, prompts(["a"]), generate, step=2)


@needs_verl
@pytest.mark.parametrize("multiple, size", [(1, 3), (2, 4), (8, 8)])
@pytest.mark.parametrize("aggregation", ["token", "rollout", "group", "constant"])
def test_padding_divides_and_the_loss_is_that_of_the_real_rows(multiple, size, aggregation):
    """verl's loss over the padded mini-batch, whose size is its divisor, is ours over the rows."""
    verl.register()
    objective = Objective((0.1, 0.3), loss_aggregation=aggregation)
    method = methods.pods(4, 2).but(objective=objective, advantage=GroupNormalized(scale=False))
    generate = Scripted(a=[1, 0, 0.5, 1], b=[0.25])
    method = method.but(allocator=Uneven([4, 1]), selector=MaxVariance(2, "group"))
    batch = play(method, prompts(["a", "b"]), generate, step=1, multiple=multiple)
    assert len(batch) == size and len(batch.chunk(multiple)) == multiple
    padding = torch.tensor(batch.non_tensor_batch["is_padding"].astype(bool))
    assert padding.tolist() == [False] * 3 + [True] * (size - 3)
    assert not batch.batch["advantages"][padding].any()
    assert not batch.batch["response_mask"][padding].any()

    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(size, 4, generator=generator)
    new = old + 0.5 * torch.randn(size, 4, generator=generator)
    mask = batch.batch["response_mask"]
    config = actor(objective, global_batch_size=size, batch_num_tokens=int(mask.sum()), dp_size=1)
    config.global_batch_info["loss_scale_factor"] = 4
    loss, _ = verl.LOSSES["workbench_token"](
        old, new, batch.batch["advantages"], mask, config.loss_agg_mode, config
    )
    real = ~padding
    rewards = batch.batch["token_level_scores"].sum(1)[real].numpy()
    groups = batch.non_tensor_batch["uid"][real.numpy()].astype(str)
    advantages = torch.tensor([1 - 0.625, 0 - 0.625, 0.0])
    assert rewards.tolist() == [1, 0, 0.25]
    expected = policy_loss(
        new[real],
        old[real],
        advantages,
        mask[real].bool(),
        clip=(0.1, 0.3),
        loss_aggregation=aggregation,
        groups=groups,
        length=4,
    )
    torch.testing.assert_close(loss, expected)


class Uneven(Slot):
    """An allocator that asks for given counts."""

    def __init__(self, counts):
        self.counts = counts

    def allocate(self, problems, context):
        yield np.array(self.counts)


class Halves(Slot):
    """An advantage of +1 on the first token of a response and -1 on the others."""

    needs = frozenset({"token_advantages"})

    def __call__(self, rollouts, context):
        rows = [np.where(np.arange(length) == 0, 1.0, -1.0) for length in rollouts.lengths]
        return Ragged.of(rows, np.float64)


def test_advantages_of_each_token_reach_the_batch():
    method = methods.grpo(3).but(advantage=Halves())
    batch = play(method, prompts(["a"]), Scripted(a=[0, 0, 1]), step=1)
    assert batch.batch["advantages"].tolist() == [[1, 0, 0, 0], [1, -1, 0, 0], [1, -1, -1, 0]]


def test_tokens_of_tools_are_part_of_a_response_but_not_trained_on():
    def generate(wanted):
        rows = Scripted(a=[1, 0])(wanted)
        rows.batch["attention_mask"] = torch.ones(2, 6, dtype=torch.long)
        rows.batch["response_mask"] = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 1]])
        return rows

    method = methods.grpo(2).but(advantage=Halves())
    batch = play(method, prompts(["a"]), generate, step=1)
    assert batch.batch["advantages"].tolist() == [[1, 0, 0, -1], [1, -1, 0, -1]]
    assert batch.meta_info["metrics"]["workbench/length"] == 4


def test_a_loop_says_what_is_wrong_with_its_rows():
    ours = methods.grpo(2)
    with pytest.raises(ValueError, match=r"generate: .*1 rows"):
        play(ours, prompts(["a"]), lambda wanted: Scripted(a=[1])(wanted[:1]), step=1)

    def unscored(wanted):
        rows = Scripted(a=[1, 0])(wanted)
        rows.pop(batch_keys=["token_level_scores"])
        return rows

    with pytest.raises(ValueError, match="token_level_scores"):
        play(ours, prompts(["a"]), unscored, step=1)
    with pytest.raises(NonFinite, match="nan"):
        play(ours, prompts(["a"]), Scripted(a=[1, float("nan")]), step=1)
    with pytest.raises(ValueError, match="old_responses"):
        play(methods.ar3po(), prompts(["a"]), Scripted(), step=1)
    with pytest.raises(ValueError, match="multiple=0"):
        play(ours, prompts(["a"]), Scripted(), step=1, multiple=0)


# A round on verl's queue. The queue is real; trainer and agent loop are scripted here, and real in
# the training runs at the end.


def composed(keys):
    """verl's default configuration with these dotted keys set."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    for key, value in keys.items():
        OmegaConf.update(config, key, value)
    return config


@pytest.fixture(scope="module")
def queue():
    """verl's queue, on a Ray of its own."""
    import ray
    import transfer_queue

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    config = composed({"transfer_queue.backend.SimpleStorage.num_data_storage_units": 1})
    transfer_queue.init(config.transfer_queue)
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


class Tokenizer:
    eos_token_id = 0

    def batch_decode(self, responses, skip_special_tokens):
        return [" ".join(map(str, tokens.tolist())) for tokens in responses]


class Loader:
    """verl's data loader, as far as its length goes."""

    batch_size = 1

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)


def manager(script):
    """Our agent loop manager, with a scripted agent loop in place of verl's workers.

    script: prompt's text -> list of responses, each (tokens, reward) or a dict of fields of
    verl's `AgentLoopOutput`, or None for one that failed.
    """
    import transfer_queue
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.utils import tensordict_utils as tensordicts

    from workbench.verl import v1

    class Manager(v1.AgentLoopManager):
        def __init__(self):
            self.waiting = []
            self.requests = []

        def dispatch(self, prompts, counts):
            texts = [chat[0]["content"] for chat in tensordicts.get(prompts, "raw_prompt")]
            self.requests.append("".join(text * n for text, n in zip(texts, counts)))
            for i, (text, count) in enumerate(zip(texts, counts)):
                row = prompts[i]
                self.run(row["uid"], row["raw_prompt"], text, int(count), int(row["global_steps"]))

        def run(self, uid, raw_prompt, text, count, step):
            for session in range(count):
                said = script[text].pop(0)
                if said is None:
                    continue
                for number, each in enumerate(said if isinstance(said, list) else [said]):
                    self.put(f"{uid}_{session}_{number}", raw_prompt, uid, each, step)
            transfer_queue.kv_put(key=uid, partition_id="train", tag={"status": "finished"})

        def put(self, key, raw_prompt, uid, said, step):
            fields = (
                dict(said) if isinstance(said, dict) else {"tokens": said[0], "reward": said[1]}
            )
            tokens = fields.pop("tokens")
            reward = fields.pop("reward")
            extra = {"min_global_steps": step - 1, "max_global_steps": step - 1}
            if "acc" in fields:
                extra["reward_extra_info"] = {"acc": fields.pop("acc")}
            output = AgentLoopOutput(
                prompt_ids=[7, 8],
                response_ids=tokens,
                response_mask=fields.pop("mask", [1] * len(tokens)),
                response_logprobs=[-0.1 * step] * len(tokens),
                reward_score=reward,
                num_turns=2,
                metrics={},
                extra_fields=extra,
            )
            row = {**output.as_dict(), "uid": uid, "raw_prompt": raw_prompt}
            row["loss_mask"] = row["response_mask"]
            row["input_ids"] = torch.cat([row["prompts"], row["responses"]])
            row["position_ids"] = torch.arange(len(row["input_ids"]))
            row |= fields
            length = len(row["input_ids"])
            tag = {"status": "success", "prompt_len": 2, "response_len": length - 2, **extra}
            tag |= {"seq_len": length, "global_steps": step}
            transfer_queue.kv_batch_put(
                keys=[key],
                partition_id="train",
                fields=tensordicts.list_of_dict_to_tensordict([row]),
                tags=[tag],
            )

    return Manager()


class Trainer:
    """What verl's trainer is to the sampler: data, the agent loop manager, the update."""

    def __init__(self, method, script, texts="abcd", sampler=None, sampler_kwargs=None, **keys):
        from workbench.verl import v1

        machine = {"data.max_response_length": 4, "actor_rollout_ref.actor.ppo_mini_batch_size": 1}
        chosen = {name.replace("__", "."): value for name, value in keys.items()}
        settings_of_method = verl.configuration(
            method, "own.Sampler" if sampler else verl_settings.SAMPLER
        )
        self.config = composed({**machine, **settings_of_method, **chosen})
        given = self.config.trainer.v1.sampler.sampler_kwargs
        given.update(sampler_kwargs or {})
        self.tokenizer = Tokenizer()
        self.train_dataloader = Loader(texts)
        self.total_training_steps = 7
        self.next = 0
        self.step = 0
        self.replay_buffer = (sampler or v1.ReplayBuffer)(
            trainer_mode=self.config.trainer.v1.trainer_mode,
            trainer_config={},
            sampler_kwargs=given,
            refill_fn=self.add_prompts,
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
        )
        self.replay_buffer.poll_interval = 0.05
        self.agent_loop_manager = manager(script)

    def add_prompts(self, n):
        import transfer_queue
        from verl.utils import tensordict_utils as tensordicts

        texts = [
            self.train_dataloader.texts[(self.next + i) % len(self.train_dataloader)]
            for i in range(n)
        ]
        uids = np.array([f"uid{self.next + i}" for i in range(n)], dtype=object)
        self.next += n
        batch = tensordicts.get_tensordict({"raw_prompt": chats(texts), "uid": uids})
        tensordicts.assign_non_tensor_data(batch, "global_steps", self.step)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.step}] * n
        transfer_queue.kv_batch_put(keys=list(uids), partition_id="train", tags=tags)
        self.agent_loop_manager.generate_sequences(batch)

    def round(self, n=2):
        """A step as verl makes it: prompts, the sampler, padding, advantages; then the queue is
        cleared.
        """
        import transfer_queue
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

        self.step += 1
        self.add_prompts(n)
        batch, metrics = self.replay_buffer.sample(self.step, "train", n)
        listed = transfer_queue.kv_list("train").get("train", {})
        assert set(listed) == set(batch.keys)  # nothing but the batch is left
        padded = upsample_batch_to_divisible_size(batch, self.replay_buffer.mini_batch, 0)
        data = transfer_queue.kv_batch_get(keys=padded.keys, partition_id="train")
        columns = {name: data[name] for name in data.keys()}
        rewards = columns["rm_scores"].to_padded_tensor(0.0)
        mask = columns["response_mask"].to_padded_tensor(0)
        advantages, _ = verl.ESTIMATORS["workbench"](rewards, mask, np.array(columns["uid"]))
        transfer_queue.kv_clear(keys=padded.keys, partition_id="train")
        return SimpleNamespace(
            keys=batch.keys,
            tags=batch.tags,
            size=len(padded),
            columns=columns,
            rewards=rewards.sum(1).tolist(),
            advantages=advantages,
            metrics={name.removeprefix("workbench/"): value for name, value in metrics.items()},
            requests=self.agent_loop_manager.requests,
        )

    def _balance_batch(self, batch, metrics):
        return batch

    def _compute_old_log_prob(self, batch, metrics):
        """Entropy of each token: 0.1 times the token, and its log-probability: minus that."""
        import transfer_queue
        from tensordict import TensorDict

        rows = transfer_queue.kv_batch_get(batch.keys, "train", select_fields=["responses"])[
            "responses"
        ]
        entropies = torch.nested.as_nested_tensor(
            [0.1 * row.float() for row in rows], layout=torch.jagged
        )
        columns = {"entropy": entropies, "old_log_probs": -entropies}
        fields = TensorDict(columns, batch_size=len(batch))
        transfer_queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)


def said(text, rewards):
    """Responses of different lengths, one for each reward."""
    return [([ord(text)] * (1 + i % 3), reward) for i, reward in enumerate(rewards)]


@needs_verl
def test_a_round_on_the_queue(queue):
    """Of five rollouts of each prompt two are kept. verl pads the four rows to six and divides by
    six, which advantages times 6 / 4 make up for.
    """
    script = {"a": said("a", [1, 0, 0, 0, 1]), "b": said("b", [0, 0, 1, 0, 0])}
    trainer = Trainer(
        methods.pods(5, 2), script, "ab", actor_rollout_ref__actor__ppo_mini_batch_size=3
    )
    found = trainer.round()
    assert found.requests == ["aaaaabbbbb"]
    assert found.keys == [f"uid0-0_{i}_0" for i in (0, 1)] + [f"uid1-0_{i}_0" for i in (0, 2)]
    assert found.rewards == [1, 0, 0, 1, 0, 0] and found.size == 6
    assert (found.advantages / 1.5).tolist() == [
        [1, 0, 0], [-1, -1, 0], [-1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0],
    ]  # fmt: skip
    assert found.metrics["rollouts"] == 10 and found.metrics["selected"] == 4
    assert found.metrics["correct"] == 0.3 and found.metrics["stages"] == 1
    assert found.metrics["length"] == 1.8 and found.metrics["tokens_sampled"] == 18 + 2 * 2
    assert 0 <= found.metrics["seconds_schedule"] < 5


@needs_verl
def test_advantages_that_differ_where_rewards_do_not_cross_the_queue(queue):
    class Sampler(importlib.import_module("workbench.verl.v1").ReplayBuffer):
        method = methods.grpo(3).but(advantage=Halves())

    trainer = Trainer(Sampler.method, {"a": said("a", [0, 0, 0])}, "a", sampler=Sampler)
    found = trainer.round(1)
    assert found.advantages.tolist() == [[1, 0, 0], [1, -1, 0], [1, -1, -1]]


@needs_verl
@pytest.mark.parametrize(
    "allocator, requests",
    [
        (Staged(stages=3, k=2), ["aabb", "bb", "bb"]),
        (
            Knapsack(4, low=2, up=6, fallback=False, rates=SuccessRates("fresh", probe=2)),
            ["aabb", "aaaa"],
        ),
    ],
)
def test_requests_on_the_queue(queue, allocator, requests):
    script = {"a": said("a", [1, 0, 0, 1, 0, 1]), "b": said("b", [0] * 6)}
    method = methods.grpo().but(allocator=allocator)
    found = Trainer(method, script, "ab").round()
    assert found.requests == requests
    assert found.metrics["stages"] == len(requests)
    assert found.metrics["rollouts"] == sum(map(len, requests))


@needs_verl
def test_dynamic_sampling_on_the_queue_draws_each_prompt_once(queue):
    """The data are a, b, c and begin again with a: the second draw finds c alone to be new, and the
    third finds nothing.
    """
    script = {"a": said("a", [1, 1]), "b": said("b", [0, 0]), "c": said("c", [1, 0])}
    trainer = Trainer(methods.dapo(2, overlong=0.0), script, "abc")
    found = trainer.round()
    assert found.requests == ["aabb", "cc"]
    assert found.rewards == [1, 0] and found.advantages[:, 0].tolist() == [1, -1]
    assert trainer.replay_buffer.drawn == 6


@needs_verl
def test_a_prompt_twice_in_a_round_makes_two_groups_on_the_queue(queue):
    trainer = Trainer(methods.grpo(2), {"a": said("a", [1, 0, 0, 0])}, "aa")
    found = trainer.round()
    assert found.metrics["problems"] == 2
    assert found.advantages[:, 0].tolist() == [1, -1, 0, 0]


@needs_verl
def test_overlong_responses_and_acc_on_the_queue(queue):
    """acc, not the reward, says what is correct, and DAPO's penalty comes on top of verl's."""
    long = {"tokens": [5, 5, 5, 5], "reward": 0.2, "acc": True}
    short = {"tokens": [5, 5, 5, 0], "reward": 0.2, "acc": False}
    trainer = Trainer(methods.dapo(2), {"a": [long, short]}, "a")
    found = trainer.round(1)
    assert found.metrics["truncated"] == 0.5  # the other ends with the end token
    assert found.metrics["reward"] == pytest.approx(0.2 - 1)
    assert found.rewards == pytest.approx([0.2, 0.2])  # verl's own metrics stay verl's
    assert found.metrics["correct"] == 0.5


@needs_verl
def test_an_old_response_joins_its_problem_on_the_queue(queue):
    """a is solved in the first round only: its old response then replaces a wrong one."""
    script = {"a": [([1, 2, 3], 1), ([4], 0), ([5, 6], 0), ([9], 0)]}
    method = methods.ar3po(stages=1, k=2)
    trainer = Trainer(method, script, "a")
    assert trainer.round(1).advantages[:, 0].tolist() == [1, -1]
    found = trainer.round(1)
    assert found.keys[0].startswith("uid1-0_") and found.keys[1].startswith("uid1-0-old")
    assert found.advantages[:, 0].tolist() == [-1, 0]  # it carries no gradient itself
    assert found.rewards == [0, 1]
    old = 1
    assert found.columns["responses"][old].tolist() == [1, 2, 3]
    assert found.columns["input_ids"][old].tolist() == [7, 8, 1, 2, 3]
    assert found.columns["position_ids"][old].tolist() == [0, 1, 2, 3, 4]
    assert found.columns["response_mask"][old].tolist() == [1, 1, 1]
    assert found.columns["rollout_log_probs"][old].tolist() == pytest.approx([-0.1] * 3)
    assert found.tags[old]["seq_len"] == 5 and found.tags[old]["max_global_steps"] == 0
    assert found.metrics["replay_stored"] == 1 and found.metrics["rollouts"] == 2


@needs_verl
def test_direct_replay_trains_on_the_old_response(queue):
    script = {"a": [([1, 2, 3], 1), ([4], 0), ([5, 6], 0), ([9], 0)]}
    trainer = Trainer(methods.ar3po(stages=1, k=2, mode="direct"), script, "a")
    trainer.round(1)
    found = trainer.round(1)
    assert found.advantages[:, 0].tolist() == [-1, 1]
    assert found.columns["rollout_log_probs"][0].tolist()[0] == pytest.approx(-0.2)


@needs_verl
def test_recomputed_replay_asks_the_model_and_leaves_nothing_in_the_queue(queue, monkeypatch):
    """The stand-in says -0.1 nats times the token of each old response."""
    script = {"a": [([1, 2, 3], 1), ([4], 0), ([5, 6], 0), ([9], 0)]}
    trainer = Trainer(methods.ar3po(stages=1, k=2, mode="recompute"), script, "a")
    trainer.round(1)
    v1 = importlib.import_module("workbench.verl.v1")
    asked = []
    batch_of_round = v1.QueueRound.batch
    monkeypatch.setattr(
        v1.QueueRound,
        "batch",
        lambda self, found: asked.append(found) or batch_of_round(self, found),
    )
    found = trainer.round(1)
    (outcome,) = asked
    assert outcome.rollouts.old_logprobs[-1].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert found.keys[1].startswith("uid1-0-old")
    assert found.advantages[:, 0].tolist() == [-1, 1]
    assert found.columns["responses"][1].tolist() == [1, 2, 3]


@needs_verl
def test_replay_is_for_responses_that_the_model_wrote_alone(queue):
    with_tool = {"tokens": [1, 2, 3], "reward": 1, "mask": [1, 0, 1]}
    trainer = Trainer(methods.ar3po(stages=1, k=2), {"a": [with_tool, with_tool]}, "a")
    with pytest.raises(ValueError, match="tokens that the model did not write"):
        trainer.round(1)
    clear(queue)


def clear(queue):
    """What a failed round left in the queue."""
    left = queue.kv_list("train").get("train", {})
    if left:
        queue.kv_clear(keys=list(left), partition_id="train")


@needs_verl
def test_entropies_reach_the_scheduler(queue):
    """Tokens say their entropy here: that of b is 0.2 nats, of a 0.1."""
    script = {"a": [([1], 1), ([1, 1], 0)], "b": [([2], 1), ([2, 2], 0)]}
    method = methods.cbs(scope="round", p=50, n=2)
    trainer = Trainer(method, script, "ab")
    found = trainer.round()
    scheduler = trainer.replay_buffer.method.selector
    assert scheduler.pending["before"] == pytest.approx([0.5, 0.15])
    assert len(found.keys) == 2 and found.metrics["scheduler_epsilon"] == 1


@needs_verl
def test_rollouts_that_do_not_come_back(queue, caplog):
    script = {"a": [([1], 1), None, ([1], 0)], "b": [None, None, None]}
    found = Trainer(methods.grpo(3), script, "ab").round()
    assert found.keys == ["uid0-0_0_0", "uid0-0_2_0"]
    assert "4 rollouts did not come back" in caplog.text
    with pytest.raises(RuntimeError, match="no rollout came back"):
        Trainer(methods.grpo(2), {"a": [None, None]}, "a").round(1)
    clear(queue)


@needs_verl
def test_several_rows_of_one_session_are_refused(queue):
    trainer = Trainer(methods.grpo(2), {"a": [[([1], 1), ([2], 1)], ([3], 0)]}, "a")
    with pytest.raises(ValueError, match="several rows a session"):
        trainer.round(1)
    clear(queue)


@needs_verl
def test_a_run_that_finds_nothing_to_train_on_says_so_and_ends(queue, caplog):
    """All rewards are alike, so dynamic sampling keeps nothing; verl gets a zero row."""
    script = {"a": [([1], 0.5)] * 20}
    trainer = Trainer(methods.dapo(2, max_draws=1, overlong=0.0), script, "a")
    found = trainer.round(1)
    assert len(found.keys) == 1 and found.size == 2  # verl fills up its mini-batch
    assert found.advantages.tolist() == [[0], [0]] and found.metrics["trained"] == 0
    assert "Round 1 has nothing to train on" in caplog.text
    assert "correct" not in found.metrics
    for _ in range(8):
        trainer.round(1)
    with pytest.raises(RuntimeError, match=r"^Round 10 has nothing to train on"):
        trainer.round(1)
    clear(queue)
    named = Trainer(
        methods.grpo(2), {"a": [([1], 0.5), ([1], 0)]}, "a", sampler_kwargs={"solved": 0.5}
    )
    assert named.round(1).metrics["correct"] == 0.5


@needs_verl
def test_what_was_learnt_goes_through_verls_checkpoint(queue, tmp_path, caplog):
    v1 = importlib.import_module("workbench.verl.v1")
    script = {"a": [([1, 2, 3], 1), ([4], 0)], "b": said("b", [0, 0])}
    first = Trainer(methods.ar3po(stages=1, k=2), script, "ab")
    first.round()
    folder = tmp_path / "global_step_1"
    folder.mkdir()
    v1.CheckpointCallback().on_save(
        trainer=first, global_step=1, checkpoint_dir=str(folder), async_save=False
    )

    script = {"a": [([5, 6], 0), ([9], 0)], "b": said("b", [0, 0])}
    resumed = Trainer(
        methods.ar3po(stages=1, k=2), script, "ab", trainer__default_local_dir=str(tmp_path)
    )
    resumed.step = 1
    found = resumed.round()
    assert [1, 2, 3] in [row.tolist() for row in found.columns["responses"]]
    assert resumed.replay_buffer.drawn == 4 and resumed.replay_buffer.driver.round == 2

    other = Trainer(methods.ar3po(stages=1, k=3), {}, "ab", trainer__resume_mode="resume_path")
    other.config.trainer.resume_from_path = str(folder)
    with pytest.raises(ValueError, match=r"method\.allocator\.k: 3, 2"):
        other.replay_buffer._restore(1)
    other.config.trainer.resume_from_path = str(tmp_path)
    other.replay_buffer._restore(1)
    assert "made without a method" in caplog.text


@needs_verl
def test_epochs_are_counted_in_prompts(queue):
    script = {"a": said("a", [1, 0] * 3), "b": said("b", [0, 0] * 3)}
    trainer = Trainer(methods.knapsack(2, rates="epoch"), script, "ab")
    history = trainer.replay_buffer.method.allocator.rates.learner
    for step in range(3):
        trainer.round()
        assert [past["epoch"] for past in history.past.values()] == [step, step]
        assert trainer.replay_buffer.driver.context.planned == trainer.total_training_steps


@needs_verl
def test_a_run_without_the_methods_keys_ends_before_it_begins(queue):
    with pytest.raises(ValueError, match="clip_ratio_high"):
        Trainer(methods.dapo(), {}, "a", actor_rollout_ref__actor__clip_ratio_high=0.2)
    with pytest.raises(ValueError, match=r"sampler_kwargs.*'seed'"):
        Trainer(methods.dapo(), {}, "a", sampler_kwargs={"sed": 1})


@needs_verl
def test_our_estimator_without_our_sampler_says_what_is_missing(queue):
    with pytest.raises(ValueError, match=r"needs workbench\.verl\.v1\.ReplayBuffer"):
        verl.ESTIMATORS["workbench"](torch.ones(2, 1), torch.ones(2, 1), np.array(["u", "v"]))


@needs_verl
def test_verls_command_line_reads_the_recipe():
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(EXAMPLES)]
    command += ["--config-name", "verl_pods", "--cfg", "job"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    config = yaml.safe_load(done.stdout)
    method = verl.method_of(config["trainer"]["v1"]["sampler"]["sampler_kwargs"])
    assert method.selector == MaxVariance(8)
    assert config["actor_rollout_ref"]["actor"]["strategy"] == "fsdp"
    verl_settings.check_configuration(config, method)


# Whole training runs: verl's trainer, agent loop, reward loop and FSDP workers, on Ray


def train(out, method, arguments, steps, *further, **keys):
    """Run the example. The metrics of each step that was trained, by step.

    The problems are hard ones, to which the tiny model hardly ever gives the same response twice.
    The advantages of two equal responses, one right and one wrong, would cancel to a gradient of 0.
    """
    command = [sys.executable, EXAMPLES / "verl_run.py", "--method", method]
    command += ["--arguments", json.dumps(arguments), "--steps", steps, "--out", out]
    command += ["--levels", 5]
    command += [
        "--set",
        json.dumps({name.replace("__", "."): value for name, value in keys.items()}),
    ]
    # On a busy machine Ray's low priority for workers would run into its own time limits.
    environment = {
        **os.environ,
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": "600",
    }
    # Ray gives its own start 30 seconds, which no setting changes; another start is another chance.
    for _ in range(4):
        done = subprocess.run(
            list(map(str, [*command, *further])),
            capture_output=True,
            text=True,
            cwd=out,
            env=environment,
        )
        printed = done.stdout + done.stderr
        if "The current node timed out during startup" not in printed:
            break
    assert done.returncode == 0, printed[-4000:]
    return {
        int(step): numbers(line)
        for step, line in re.findall(r"step:(\d+) - (.*workbench/.*)", printed)
    }


def numbers(line):
    """The metrics of a line of verl's console log.

    NumPy 2 prints its numbers with their types, such as np.int64(1).
    """
    pattern = r"([\w/@]+):(?:np\.\w+\()?([-+\d.e]+)"
    return {name: float(value) for name, value in re.findall(pattern, line)}


REWARD = """
RULES = {rules}
calls = {{}}


def reward(data_source, solution_str, ground_truth, extra_info=None):
    rule = RULES[extra_info["index"]]
    number = calls.get(extra_info["index"], 0)
    calls[extra_info["index"]] = number + 1
    return {{"score": float(rule[number % len(rule)])}}
"""


def rewarding(folder, rules):
    """A key of verl: the n-th response to problem i gets the n-th reward of rules[i], and so on
    from the start.
    """
    path = folder / "rewards.py"
    path.write_text(REWARD.format(rules=rules))
    return {"reward__custom_reward_function__path": str(path)}


def batch_of(n):
    """Keys of verl: n problems a step."""
    return {"data__train_batch_size": n, "actor_rollout_ref__actor__ppo_mini_batch_size": n}


@needs_verl
@pytest.mark.slow
def test_ar3po_replays_in_a_resumed_run(tmp_path):
    """Staged, and replay of correct responses, through verl's checkpoint. One problem is solved in
    the first step, and in the second, in another process, it never is: one wrong response of six
    gives way to the old one, which carries no gradient itself.
    """
    keys = batch_of(1) | rewarding(tmp_path, {0: [1, 0]})
    arguments = {"stages": 3, "k": 2}
    first = train(tmp_path, "ar3po", arguments, 1, "--problems", 1, **keys)[1]
    assert first["workbench/rollouts"] == first["workbench/trained"] == 2
    assert first["workbench/replay_stored"] == first["workbench/stages"] == 1
    assert first["actor/grad_norm"] > 0

    keys |= rewarding(tmp_path, {0: [0]})
    resumed = train(tmp_path, "ar3po", arguments, 2, "--problems", 1, "--resume", **keys)
    assert list(resumed) == [2]
    second = resumed[2]
    assert second["workbench/stages"] == 3 and second["workbench/rollouts"] == 6
    assert second["workbench/selected"] == 6 and second["workbench/trained"] == 5
    assert second["workbench/correct"] == 0 and second["critic/score/mean"] == pytest.approx(1 / 6)
    assert second["training/off_policy/trajectory_staleness/max"] == 1
    assert second["actor/grad_norm"] > 0

    driver = Driver(methods.ar3po(**arguments), seed=0)
    assert driver.load(tmp_path / "checkpoints/global_step_2")["drawn"] == 2
    stored = driver.method.replay.stored  # loading makes the method anew
    assert len(stored) == 1 and stored.round.tolist() == [1]


@needs_verl
@pytest.mark.slow
def test_dynamic_sampling_with_fresh_rates(tmp_path):
    """Two of four groups are not mixed, so four further prompts are drawn, of which the first two
    are kept. Each draw has a request for probes, and one for the rest of its budget.
    """
    fresh = Knapsack(4, low=2, up=8, rates=SuccessRates("fresh", probe=2))
    method = methods.dapo(4).but(allocator=DynamicSampling(max_draws=2, within=fresh))
    rules = {i: [0] if i in (0, 1) else [1, 0] for i in range(8)}
    keys = rewarding(tmp_path, rules) | {"trainer__val_before_train": True}
    found = train(tmp_path, json.dumps(describe(method)), {}, 1, "--problems", 8, **keys)[1]
    assert found["workbench/problems"] == 8 and found["workbench/stages"] == 4
    assert found["workbench/rollouts"] == 32 and found["workbench/effective_gradient_ratio"] == 1
    assert found["workbench/success_rate_known"] == 1
    assert found["actor/grad_norm"] > 0


@needs_verl
@pytest.mark.slow
def test_rescue_and_rejection(tmp_path):
    """AERO: the first problem fails twice and is rescued by two more rollouts. Of each problem one
    right and one wrong rollout are kept.
    """
    keys = batch_of(2) | rewarding(tmp_path, {0: [0, 0, 1, 0], 1: [1, 0]})
    arguments = {"explore": 2, "total": 4, "n_max": 6, "k_max": 2, "uniform": 2}
    found = train(tmp_path, "aero", arguments, 1, "--problems", 2, **keys)[1]
    assert found["workbench/stages"] == 2 and found["workbench/rollouts"] == 6
    assert found["workbench/selected"] == found["workbench/trained"] == 4
    assert found["actor/grad_norm"] > 0


@needs_verl
@pytest.mark.slow
def test_the_scheduler_learns_from_entropies_that_verl_computes(tmp_path):
    keys = batch_of(2) | rewarding(tmp_path, {0: [1, 0], 1: [1, 0]})
    found = train(tmp_path, "cbs", {"n": 4, "p": 50}, 2, "--problems", 2, **keys)
    assert list(found) == [1, 2]
    for step in (1, 2):
        assert found[step]["workbench/rollouts"] == 8 and found[step]["workbench/selected"] == 4
        assert found[step]["actor/grad_norm"] > 0
    assert "workbench/scheduler_reward" not in found[1]
    assert np.isfinite(found[2]["workbench/scheduler_reward"])
    assert found[2]["workbench/scheduler_error"] > 0


@needs_verl
@pytest.mark.slow
def test_knapsack_counts_in_verl_follow_what_it_has_seen(tmp_path):
    """Of three problems one is always right, one never, and the mixed one then gets most."""
    keys = batch_of(3) | rewarding(tmp_path, {0: [1], 1: [0], 2: [1, 0]})
    arguments = {"n": 4, "low": 2, "up": 8, "fallback": False}
    found = train(tmp_path, "knapsack", arguments, 2, "--problems", 3, **keys)
    assert found[1]["workbench/rollouts"] == found[2]["workbench/rollouts"] == 12
    assert found[1]["workbench/effective_gradient_ratio"] == pytest.approx(4 / 12)
    assert found[2]["workbench/effective_gradient_ratio"] == pytest.approx(8 / 12)
    assert found[2]["workbench/success_rate_known"] == 1
