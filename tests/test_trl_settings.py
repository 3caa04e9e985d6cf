"""Which settings the TRL trainer takes from the method, and which it refuses."""

import math

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl_cases
from small_methods import small
from trl_cases import dataset, refused, right, trainer

from workbench import methods
from workbench import trl as workbench_trl
from workbench.objectives import Objective
from workbench.rollouts import NonFinite
from workbench.rules import curricula
from workbench.rules.allocators import SuccessRates
from workbench.rules.replay import CorrectResponses
from workbench.slots import Selection, Slot
from workbench.trl.setup import arguments

# The objective of the method


@pytest.mark.slow
def test_a_method_s_objective_is_applied_without_a_word(tmp_path):
    one = trainer(tmp_path, methods.gspo(4))
    assert one.importance_sampling_level == "sequence"
    assert (one.loss_type, one.epsilon_low, one.epsilon_high) == ("grpo", 3e-4, 4e-4)
    one = trainer(tmp_path, methods.aero(kl=0.1))
    assert (one.beta, one.entropy_coef, one.loss_type) == (0.1, 1e-3, "grpo")
    assert one.ref_model is not None
    assert one._entropy_bonus_enabled


def test_a_configuration_serves_several_trainers(tmp_path):
    args = trl_cases.config(tmp_path, num_generations=8)
    options = {"train_dataset": dataset(8), "args": args}
    first = workbench_trl.GRPOTrainer(trl_cases.MODEL, right, method=methods.gspo(4), **options)
    second = workbench_trl.GRPOTrainer(trl_cases.MODEL, right, method=methods.pods(8, 2), **options)
    assert (first.importance_sampling_level, first.num_generations) == ("sequence", 4)
    assert (second.importance_sampling_level, second.num_generations) == ("token", 2)
    assert first.loss_type == second.loss_type == "grpo"
    assert (args.loss_type, args.num_generations, args.epsilon_high) == ("dapo", 8, None)


@pytest.mark.parametrize(
    "method, settings",
    [
        (methods.grpo(4), {"beta": 0.2}),
        (methods.gspo(4), {"loss_type": "bnpo"}),
        (methods.grpo(4), {"epsilon_high": 0.5}),
        (methods.grpo(4), {"scale_rewards": "none"}),
        (methods.pods(32, 8), {"num_generations": 4}),
        (methods.grpo(4), {"multi_objective_aggregation": "normalize_then_sum"}),
        (small("aero"), {"use_adaptive_entropy": True}),
        (small("aero"), {"top_entropy_quantile": 0.5}),
        # Sampling would refuse it in the first step, after the model was loaded.
        (methods.grpo(4), {"max_completion_length": None}),
    ],
)
def test_a_setting_that_goes_against_the_method_is_refused(method, settings, tmp_path):
    refused(tmp_path, method, f"^{min(settings)}=", **settings)


def test_the_objective_of_the_configuration_is_kept_when_asked_for(tmp_path):
    options = {"objective_from": "args"}
    one = trainer(tmp_path, methods.gspo(4), options=options, loss_type="cispo", epsilon_high=5.0)
    assert (one.loss_type, one.epsilon_high) == ("cispo", 5.0)
    assert one.importance_sampling_level == "token"
    refused(tmp_path, methods.gspo(4), "^objective_from", options={"objective_from": "trl"})


def test_a_method_in_trl_s_words():
    words = arguments(methods.aero(kl=0.01))
    assert words == {
        "loss_type": "grpo",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.01,
        "use_bias_correction_kl": False,
        "importance_sampling_level": "token",
        "entropy_coef": 1e-3,
        "use_adaptive_entropy": False,
        "delta": None,
    }
    assert arguments(methods.dr_grpo())["loss_type"] == "dr_grpo"
    two_sided = methods.grpo().but(objective=Objective(dual_clip=3.0))
    assert arguments(two_sided)["delta"] == 3.0
    sapo = arguments(methods.sapo(temperatures=(1.0, 2.0)))
    assert sapo["loss_type"] == "sapo"
    assert (sapo["sapo_temperature_pos"], sapo["sapo_temperature_neg"]) == (1.0, 2.0)
    cispo = arguments(methods.cispo(clip=(1.0, 4.0)))
    assert (cispo["loss_type"], cispo["epsilon_high"]) == ("cispo", 5.0)


@pytest.mark.parametrize("name", ["gmpo", "clip_cov", "kl_cov"])
def test_an_objective_that_trl_does_not_have_is_refused(name, tmp_path):
    method = getattr(methods, name)(4)
    refused(tmp_path, method, f"^surrogate='{name}'")
    # With TRL's own objective the rest of the method is carried.
    trainer(tmp_path, method, options={"objective_from": "args"})


def test_a_part_of_an_objective_that_trl_does_not_have_is_refused(tmp_path):
    corrected = methods.grpo(4).but(objective=Objective(sampler_correction="mask"))
    refused(tmp_path, corrected, "^sampler_correction")
    refused(tmp_path, methods.cispo(4, clip=(0.2, 0.2)), "^clip")
    tight = methods.grpo(4).but(objective=Objective(clip=(0.2, 3.0), dual_clip=3.0))
    refused(tmp_path, tight, "^dual_clip")


@pytest.mark.slow
def test_a_term_that_is_not_averaged_as_the_loss_is_warned_of(tmp_path, caplog):
    for options in ({"entropy": 0.001}, {"loss_aggregation": "rollout", "kl": 0.1}):
        trainer(tmp_path, methods.grpo(4).but(objective=Objective(**options)))
        assert "averages" not in caplog.text
    for options in ({"entropy": 0.001}, {"kl": 0.1}):
        caplog.clear()
        objective = Objective(loss_aggregation="group", **options)
        trainer(tmp_path, small("aero").but(objective=objective))
        assert "loss_aggregation='group'" in caplog.text


# Sizes


def test_num_generations_is_the_number_trained_on(tmp_path):
    options = {"train_dataset": dataset(8), "method": methods.pods(32, 4)}
    args = trl_cases.config(tmp_path, num_generations=8)  # TRL's default
    one = workbench_trl.GRPOTrainer(trl_cases.MODEL, right, args=args, **options)
    assert one.num_generations == 4
    assert (one.num_generations_eval, one.args.generation_batch_size) == (8, 16)


def test_other_numbers_of_generations_are_refused(tmp_path):
    sizes = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    refused(tmp_path, methods.pods(32, 8), "^num_generations", num_generations=32, **sizes)
    size = "^generation_batch_size=16.*per_device_train_batch_size=6"
    refused(tmp_path, methods.grpo(6), size, num_generations=8)
    for size in (2, 4):  # how many rollouts of a problem it trains on varies
        assert trainer(tmp_path, methods.aero(), num_generations=size).num_generations == size


# Levels of problems


def test_a_curriculum_by_level_reads_the_column_of_that_name(tmp_path):
    method = methods.adarft(4)
    data = dataset(16, levels=(1, 2))
    one = trainer(tmp_path, method, data=data)
    assert [problem.level for problem in one.pool] == data["level"]
    assert set(data["level"]) == {1, 2}
    match = r"^curriculum=AdaRft.*\(levels\)"
    refused(tmp_path, method, match, data=data.remove_columns("level"))
    known = {workbench_trl.problem_id(prompt): 50.0 for prompt in data["prompt"]}
    own = methods.adarft(4, curriculum=curricula.AdaRft(difficulties=known))
    trainer(tmp_path, own, data=data.remove_columns("level"))


@pytest.mark.parametrize("level", ["Level 3", 1.5, None, [1]], ids=str)
def test_levels_that_are_no_whole_numbers_are_left_to_who_needs_none(level, tmp_path):
    data = dataset(16).map(lambda row: {**row, "level": level if row["level"] == 1 else None})
    assert {problem.level for problem in trainer(tmp_path, small("dapo"), data=data).pool} == {0}
    refused(tmp_path, methods.adarft(4), r"^curriculum=AdaRft.*\(levels\)", data=data)


# What is refused


class Heavy(Slot):
    """A selector that weighs rollouts and says so."""

    needs = frozenset({"row_weights"})

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)), weights=np.ones(len(rollouts)))


def test_what_a_slot_needs_and_this_trainer_lacks_is_refused_by_name(tmp_path):
    match = r"^selector=Scheduler\(.*\) needs optimizer steps of a size that the selector chooses"
    refused(tmp_path, methods.cbs(mini_batch=4), match)
    match = r"^allocator=Knapsack\(.*\) needs the policy's hidden states of a prompt"
    refused(tmp_path, methods.knapsack(rates=SuccessRates("predictor")), match)
    match = r"^allocator=DynamicSampling\(n=4\) needs further problems .* without a train_dataset "
    refused(tmp_path, small("dapo"), match, data=dataset(8).to_iterable_dataset())
    match = "^replay=Buffer.* needs .* with vllm_importance_sampling_correction"
    refused(tmp_path, methods.cbs(scope="buffer"), match, use_vllm=True)
    match = "^replay=Buffer.* needs .* with off_policy_mask_threshold"
    refused(tmp_path, methods.cbs(scope="buffer"), match, off_policy_mask_threshold=0.5)
    match = "^replay=CorrectResponses.* needs training on responses .* with loss_type='bnpo'"
    options = {"objective_from": "args"}
    refused(tmp_path, methods.ar3po(), match, loss_type="bnpo", options=options)
    match = "^replay=CorrectResponses.* with tools, environments or a rollout_func does not provide"
    refused(tmp_path, methods.ar3po(), match, options={"tools": [len]})
    by_token = methods.rl_zvp(4).but(objective=methods.gspo().objective)
    match = (
        "^advantage=.* needs advantages that differ .* with importance_sampling_level='sequence'"
    )
    refused(tmp_path, by_token, match)
    weighing = methods.grpo(4, objective=Objective(kl=0.1)).but(selector=Heavy())
    match = "^selector=Heavy.* needs a weight for the loss .* with a KL penalty or an entropy bonus"
    refused(tmp_path, weighing, match)
    # The modes that keep no old probabilities go with vLLM's correction.
    stop = methods.ar3po(2, 2).but(replay=CorrectResponses("stop-gradient"))
    with pytest.raises(OSError, match=r"connect|no/such-model"):  # only the model is missing
        trainer(tmp_path, stop, model="no/such-model", use_vllm=True)


def test_wrong_arguments_are_named_before_a_model_is_loaded(tmp_path):
    grpo = methods.grpo(4)
    pictures = dataset(8).add_column("image", [""] * 8)
    refused(tmp_path, grpo, "^train_dataset: .*image", data=pictures)
    few = "^train_dataset: it has 3 rows, and a round has 4 prompts"
    refused(tmp_path, grpo, few, data=dataset(3))
    refused(tmp_path, 7, "^method=7", num_generations=4)
    refused(tmp_path, "podz", "^method='podz'.*did you mean 'pods'", num_generations=8)
    # A name is enough, also that of a method which another package brings.
    refused(tmp_path, "pods", "^num_generations=4: the method 'pods'", num_generations=4)
    refused(tmp_path, grpo, "^rows_at_once=0", options={"rows_at_once": 0})
    for name, value in (("correct", "right"), ("rows_at_once", 4), ("objective_from", "args")):
        refused(tmp_path, None, "^method=None", options={name: value})


@pytest.mark.slow
def test_a_reward_that_is_not_finite_is_named(tmp_path):
    def infinite(completions, **_):
        return [math.inf] * len(completions)

    with pytest.raises(NonFinite, match="inf"):
        trainer(tmp_path, methods.grpo(4), reward=infinite).train()


def test_without_arguments_trl_s_own_name_of_the_run_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = trl_cases.config(tmp_path)
    monkeypatch.setattr("workbench.trl.setup.GRPOConfig", lambda name: _named(args, name))
    one = workbench_trl.GRPOTrainer(
        trl_cases.MODEL, right, train_dataset=dataset(8), method=methods.grpo(4)
    )
    assert one.args.output_dir == "tiny-GRPO"


def _named(args, name):
    args.output_dir = name
    return args
