"""What the TRL trainer takes from the method, asks for and refuses, and what it warns of."""

import logging
import math
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl
import trl_cases
from trl_cases import SMALL, boxed, dataset, logged, right, same, small, trained, trainer, weights

from workbench import methods
from workbench import trl as workbench_trl
from workbench.advantages import BatchNormalized, GroupNormalized, LeaveOneOut, Posterior
from workbench.allocators import SuccessRates
from workbench.objectives import Objective
from workbench.replay import CorrectResponses
from workbench.selectors import MaxVariance
from workbench.slots import Selection, Slot
from workbench.trl import report
from workbench.trl.setup import arguments, scale_rewards, trained_per_problem
from workbench.trl.table import weighted_sum
from workbench.trl.verdict import Verdict, reads_verdict

READING_VERDICTS = [name for name in methods.PAPERS if reads_verdict(small(name))]


def refused(tmp_path, method, match, *, reward=right, options=(), **settings):
    """A trainer is refused, in one line, before its model is looked for."""
    with pytest.raises(ValueError, match=match) as error:
        trainer(tmp_path, method, model="no/such-model", reward=reward, options=options, **settings)
    assert "\n" not in str(error.value)


# The objective of the method


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
    assert (first.loss_type, first.num_generations) == ("grpo", 4)
    assert (second.loss_type, second.num_generations) == ("dapo", 2)
    assert (args.loss_type, args.num_generations, args.epsilon_high) == ("dapo", 8, None)


def test_a_contradiction_to_the_objective_is_refused(tmp_path):
    match = r"^beta=0\.2: the objective of the method 'grpo' has beta=0\.0; leave beta out"
    refused(tmp_path, methods.grpo(4), match, beta=0.2)
    match = "^loss_type='bnpo': the objective of the method 'gspo' has loss_type='grpo'"
    refused(tmp_path, methods.gspo(4), match, loss_type="bnpo")
    match = r"^epsilon_high=0\.5: the objective of the method 'grpo' has epsilon_high=0\.28"
    refused(tmp_path, methods.grpo(4), match, epsilon_high=0.5)
    match = "^use_adaptive_entropy=True: the objective of the method 'aero'"
    refused(tmp_path, small("aero"), match, use_adaptive_entropy=True)


def test_the_objective_of_the_configuration_is_kept_when_asked_for(tmp_path):
    options = {"objective_from": "args"}
    one = trainer(tmp_path, methods.gspo(4), options=options, loss_type="cispo", epsilon_high=5.0)
    assert (one.loss_type, one.epsilon_high) == ("cispo", 5.0)
    assert one.importance_sampling_level == "token"
    match = "^objective_from='trl': allowed are 'method', 'args'"
    refused(tmp_path, methods.gspo(4), match, options={"objective_from": "trl"})


def test_a_method_in_trl_s_words():
    words = arguments(methods.aero(kl=0.01))
    assert words == {
        "loss_type": "grpo",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.01,
        "importance_sampling_level": "token",
        "entropy_coef": 1e-3,
        "use_adaptive_entropy": False,
    }
    assert arguments(methods.dr_grpo())["loss_type"] == "dr_grpo"
    by_group = methods.grpo().but(objective=Objective(loss_aggregation="group"))
    with pytest.raises(ValueError, match=r"^loss_aggregation='group': TRL has no such average"):
        arguments(by_group)


# How rewards are scaled


@pytest.mark.parametrize(
    "advantage, word",
    [
        (GroupNormalized(), "group"),
        (GroupNormalized(scale=False), "none"),
        (BatchNormalized("group"), "batch"),
        (BatchNormalized(), None),
        (LeaveOneOut(), None),
    ],
)
def test_scale_rewards_must_say_what_the_advantage_does(advantage, word, tmp_path):
    method = methods.grpo(4).but(advantage=advantage)
    assert scale_rewards(method) == word
    for value in ("none", "batch"):
        if value == word:
            trainer(tmp_path, method, scale_rewards=value)
        else:
            match = f"^scale_rewards='{value}': advantages are those of the method, {advantage!r}"
            match = match.replace("(", r"\(").replace(")", r"\)").split(r"\(")[0]
            refused(tmp_path, method, match, scale_rewards=value)


# Sizes


@pytest.mark.parametrize(
    "method, size",
    [
        (methods.grpo(16), 16),
        (methods.pods(32, 8), 8),
        (methods.dapo(4), 4),
        (methods.dapo(4, groups=3), None),
        (methods.knapsack(6), 6),
        (methods.knapsack(6).but(selector=MaxVariance(4)), None),
        (methods.ar3po(), None),
        (methods.aero(), None),
        (methods.cbs(n=8), 2),
        (methods.cbs(n=8, scope="buffer"), None),
    ],
)
def test_rollouts_trained_on_for_each_problem(method, size):
    assert trained_per_problem(method) == size


def test_num_generations_is_the_number_trained_on(tmp_path, caplog):
    options = {"train_dataset": dataset(8), "method": methods.pods(32, 4)}
    args = trl_cases.config(tmp_path, num_generations=8)  # TRL's default
    one = workbench_trl.GRPOTrainer(trl_cases.MODEL, right, args=args, **options)
    assert one.num_generations == 4
    assert "num_generations=4, since the method 'pods' trains on so many rollouts" in caplog.text
    assert (one.num_generations_eval, one.args.generation_batch_size) == (8, 16)


def test_other_numbers_of_generations_are_refused(tmp_path):
    match = "^num_generations=32: the method 'pods' trains on 8 rollouts of a problem; leave"
    sizes = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    refused(tmp_path, methods.pods(32, 8), match, num_generations=32, **sizes)
    match = "^num_generations=4: the method 'grpo' trains on 16 rollouts"
    refused(tmp_path, methods.grpo(16), match, num_generations=4)
    match = "^generation_batch_size=16: the method 'grpo' trains on 6 .*, so a multiple of 6 is"
    refused(tmp_path, methods.grpo(6), match, num_generations=8)
    for size in (2, 4):  # how many rollouts of a problem it trains on varies
        assert trainer(tmp_path, methods.aero(), num_generations=size).num_generations == size


# What is correct


@pytest.mark.parametrize("order", ["format first", "accuracy first"])
@pytest.mark.parametrize("name", methods.PAPERS)
def test_every_method_trains_on_format_and_accuracy_in_any_order(name, order, tmp_path):
    functions = [boxed, right] if order == "format first" else [right, boxed]
    shares = [0.2, 0.8] if order == "format first" else [0.8, 0.2]
    settings = {"reward": functions, "reward_weights": shares, "max_steps": 1}
    one = trainer(tmp_path, small(name), options={"correct": "right"}, **settings)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    names = ("workbench/correct", "rewards/right/mean")
    correct, accuracy = logged(one, *names)
    if name in ("ar3po", "aero", "dapo"):  # TRL's mean is one of means, of several calls
        assert all(0 <= share <= 1 for share in correct)
    else:
        assert correct == pytest.approx(accuracy)
    assert max(logged(one, "workbench/trained")[0]) > 0


@pytest.mark.parametrize("name", methods.PAPERS)
def test_a_method_that_asks_what_is_correct_must_be_told(name, tmp_path):
    settings = {"reward": [boxed, right], "reward_weights": [0.2, 0.8]}
    if name in READING_VERDICTS:
        match = (
            r"^correct=None: the method '\w+' asks which rollouts are correct, and there are 2 "
            r"reward functions; pass correct='boxed' or correct='right' \(correct where it gives"
        )
        refused(tmp_path, small(name), match, **settings)
        return
    one = trained(trainer(tmp_path, small(name), max_steps=1, **settings))
    assert logged(one, "workbench/reward")[0]
    assert logged(one, "workbench/correct", "workbench/all_positive") == [[], []]


def half(completions, answer, **_):
    """A reward function that gives 0.5 for a right answer."""
    return [value / 2 for value in right(completions, answer)]


def short(completions, **_):
    """A length reward."""
    return [-float(len(text)) for text in completions]


@pytest.mark.parametrize("function, given", [(half, "0.5"), (short, "-")])
@pytest.mark.parametrize("name", READING_VERDICTS)
def test_rewards_other_than_0_and_1_do_not_say_what_is_correct(name, function, given, tmp_path):
    method = small(name)
    one = trainer(tmp_path, method, reward=function)
    before = weights(one)
    match = rf"^correct=None: the reward function {function.__name__} gave {given}.* Only 0 and 1"
    with pytest.raises(ValueError, match=match):
        one.train()
    assert same(before, weights(one))  # nothing has been trained on


def test_a_named_reward_function_judges_by_more_than_0(tmp_path):
    options = {"correct": "half"}
    one = trainer(tmp_path, SMALL["dapo"], reward=half, options=options)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    assert logged(one, "workbench/correct")[0] == pytest.approx(
        [2 * value for value in logged(one, "rewards/half/mean")[0]]
    )


def test_a_function_judges_by_all_rewards(tmp_path):
    options = {"correct": lambda rewards: rewards[:, 1] >= 0.5}
    one = trained(trainer(tmp_path, SMALL["ar3po"], reward=[boxed, half], options=options))
    assert max(logged(one, "workbench/correct")[0]) > 0


def test_a_verdict_by_each_rule(caplog):
    nan = math.nan
    one = Verdict(None, ["only"], needed=True)
    assert one(np.array([[0.0], [1.0], [nan]]), first=True).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"the reward function only gave 0\.2\. Only 0 and 1 say"):
        one(np.array([[0.2], [1.0]]), first=True)
    # Later on an error would cost all that was learnt, so it is a warning, once.
    for _ in range(2):
        assert one(np.array([[0.2], [1.5]]), first=False).tolist() == [False, True]
    assert caplog.text.count("So far 1 was correct, and from now on 1 or more is.") == 1

    unread = Verdict(None, ["only"], needed=False)
    assert unread(np.array([[0.2]]), first=True).tolist() == [False]
    assert not unread.known
    assert not Verdict(None, ["a", "b"], needed=False).known

    named = Verdict("b", ["a", "b"], needed=True)
    scores = np.array([[1.0, -1.0], [0.0, 0.5], [0.0, nan]])
    assert named(scores, first=True).tolist() == [False, True, False]
    assert "either counts as correct" not in caplog.text
    named(np.array([[0.0, 0.1], [0.0, 1.0]]), first=True)
    assert "correct='b': the reward function gave both 0.1 and 1, and either" in caplog.text

    wrong = Verdict(lambda rewards: rewards[:1, 0] > 0, ["a"], needed=True)
    with pytest.raises(ValueError, match="returned 1 values for 3 rollouts"):
        wrong(scores, first=True)


def test_what_correct_may_be(tmp_path):
    method = SMALL["dapo"]
    match = "^correct='accuracy': no reward function of that name; pass correct='right' "
    refused(tmp_path, method, match, options={"correct": "accuracy"})
    match = "^correct=1: the name of a reward function or a function is needed; pass"
    refused(tmp_path, method, match, options={"correct": 1})


def test_a_posterior_knows_which_reward_is_a_success(tmp_path):
    match = (
        r"^reward_weights=\[1\.0, 1\.0\]: rewards of boxed, right may sum to 2, but advantage="
        r"Posterior\(\) takes 1 for success; choose reward_weights that sum to it"
    )
    functions = [boxed, right]
    options = {"correct": "right"}
    refused(tmp_path, small("aero"), match, reward=functions, options=options)
    wider = small("aero").but(advantage=Posterior(bounds=(0, 2)))
    trained(trainer(tmp_path, wider, reward=functions, options=options, max_steps=1))


# Rounds without anything to train on


def always(completions, **_):
    return [1.0] * len(completions)


def test_a_round_with_nothing_to_train_on_is_warned_of_once(tmp_path, caplog):
    one = trainer(tmp_path, methods.dapo(4, overlong=0), reward=always, max_steps=2)
    before = weights(one)
    trained(one)
    assert same(before, weights(one))
    warnings = [record for record in caplog.records if "nothing to train on" in record.message]
    assert [record.levelno for record in warnings] == [logging.WARNING]
    message = warnings[0].message
    assert "Round 1 has nothing to train on, since none of the rollouts selected has an" in message
    assert "48 rollouts with rewards from 1 to 1, 48 of them correct, 0 selected." in message
    assert not any(value is None for row in one.state.log_history for value in row.values())


def test_ten_rounds_from_the_start_with_nothing_to_train_on_are_an_error(tmp_path):
    settings = {"max_steps": 12, "max_completion_length": 4, "data": dataset(64)}
    one = trainer(tmp_path, methods.grpo(4), reward=always, **settings)
    match = r"^Round 10 has nothing to train on.* None of the rounds before had anything either\.$"
    with pytest.raises(RuntimeError, match=match):
        one.train()
    assert one.state.global_step == 9


def test_a_run_that_has_learnt_may_come_to_rest(caplog):
    empty = _table(trained=False)
    counted = report.EmptyRounds()
    counted.check(1, _table(trained=True), known=True)
    for number in range(2, 12):
        counted.check(number, empty, known=True)
    assert caplog.text.count("nothing to train on") == 2
    assert "This is round 10 of that kind in a row." in caplog.text
    counted.check(12, _table(trained=True), known=True)
    assert counted.in_a_row == 0


def _table(trained):
    rollouts = trl_cases.hand_made_round().rollouts
    flags = np.full(7, trained)
    return rollouts.assign(trained=flags, selected=flags, age=np.zeros(7, dtype=np.int64))


# Rewards of None


def test_a_round_of_none_rewards_warns_and_goes_on(tmp_path, caplog):
    calls = []

    def absent_at_first(completions, answer, **_):
        calls.append(len(completions))
        if len(calls) == 1:
            return [None] * len(completions)
        return right(completions, answer)

    one = trainer(tmp_path, methods.grpo(4), reward=absent_at_first, max_steps=3)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    assert "no reward function scored any rollout, all of them gave None." in caplog.text
    names = ("workbench/unscored", "workbench/rollouts", "workbench/trained")
    unscored, sampled, counts = logged(one, *names)
    assert unscored == [16, 0, 0]
    assert sampled == [16, 16, 16]
    assert counts[0] == 0
    assert max(counts) > 0


@pytest.mark.parametrize("name", methods.PAPERS)
def test_every_method_goes_on_after_a_round_of_none_rewards(name, tmp_path):
    rounds = []

    def absent(completions, answer, trainer_state, **_):
        rounds.append(trainer_state.global_step)
        if trainer_state.global_step == 0:
            return [None] * len(completions)
        return right(completions, answer)

    one = trained(trainer(tmp_path, small(name), reward=absent))
    assert set(rounds) == {0, 1}
    assert logged(one, "workbench/trained")[0][0] == 0


def test_rollouts_without_a_reward_are_left_out(tmp_path):
    def some(completions, answer, **_):
        values = right(completions, answer)
        return [None if len(text) % 3 == 0 else v for text, v in zip(completions, values)]

    one = trainer(tmp_path, methods.grpo(4), reward=some, max_steps=1)
    seen = []
    make = one._micro_batches.make
    one._micro_batches.make = lambda outcome, *rest: seen.append(outcome) or make(outcome, *rest)
    trained(one)
    rollouts = seen[0].rollouts
    assert not any(len(text) % 3 == 0 for text in rollouts.text)
    assert 0 < len(rollouts) < 16
    assert logged(one, "workbench/unscored")[0] == [16 - len(rollouts)]
    assert np.array_equal(seen[0].rows, np.arange(len(rollouts)))
    for problem in set(rollouts.problem):
        draws = rollouts.draw[rollouts.problem == problem]
        assert draws.tolist() == list(range(len(draws)))


def test_rewards_are_summed_as_trl_sums_them():
    parts = np.array([[1, 1], [1, np.nan], [np.nan, np.nan]], dtype=np.float32)
    found = weighted_sum(parts, np.array([0.8, 0.2], np.float32))
    assert np.array_equal(found, np.float32([1.0, 0.8, np.nan]), equal_nan=True)
    with pytest.raises(ValueError, match=r"^reward_funcs: a reward is inf; finite numbers or None"):
        weighted_sum(np.array([[np.inf]]), np.ones(1))


# What is refused


@dataclass(frozen=True)
class Silent(Slot):
    """An allocator that asks for a stage of nothing."""

    def allocate(self, problems, context):
        yield np.zeros(len(problems), dtype=np.int64)


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
    refused(tmp_path, SMALL["dapo"], match, data=dataset(8).to_iterable_dataset())
    match = "^replay=Buffer.* needs .* with vllm_importance_sampling_correction=True, which has no"
    refused(tmp_path, methods.cbs(scope="buffer"), match, use_vllm=True)
    match = "^replay=CorrectResponses.* needs training on responses .* with loss_type='bnpo', which"
    options = {"objective_from": "args"}
    refused(tmp_path, methods.ar3po(), match, loss_type="bnpo", options=options)
    match = "^replay=CorrectResponses.* with tools, environments or a rollout_func does not provide"
    refused(tmp_path, methods.ar3po(), match, options={"tools": [len]})
    weighing = methods.grpo(4, kl=0.1).but(selector=Heavy())
    match = "^selector=Heavy.* needs a weight for the loss .* with a KL penalty or an entropy bonus"
    refused(tmp_path, weighing, match)
    # The modes that keep no old probabilities go with vLLM's correction.
    stop = methods.ar3po(2, 2).but(replay=CorrectResponses("stop-gradient"))
    with pytest.raises(OSError, match="no/such-model"):
        trainer(tmp_path, stop, model="no/such-model", use_vllm=True)


def test_what_cannot_be_carried_is_named_before_a_model_is_loaded(tmp_path):
    grpo = methods.grpo(4)
    match = "^method='pods': a Method is needed, such as workbench.methods.grpo"
    refused(tmp_path, "pods", match, num_generations=4)
    refused(
        tmp_path,
        grpo,
        "^rows_at_once=0: a whole number of at least 1",
        options={"rows_at_once": 0},
    )
    match = "^multi_objective_aggregation='normalize_then_sum': a method reads the weighted sum"
    refused(tmp_path, grpo, match, multi_objective_aggregation="normalize_then_sum")
    with_images = dataset(8).add_column("image", [None] * 8)
    refused(tmp_path, grpo, "^train_dataset: it has images, and a method's table", data=with_images)
    match = r"^top_entropy_quantile=0\.5: together with an entropy bonus"
    refused(tmp_path, small("aero"), match, top_entropy_quantile=0.5)


def test_arguments_of_a_method_without_a_method_are_refused(tmp_path):
    for name, value in (("correct", "right"), ("rows_at_once", 4), ("objective_from", "args")):
        with pytest.raises(ValueError, match=f"^{name}={value!r}: it goes with a method"):
            trainer(tmp_path, options={name: value})


def test_a_stage_of_nothing_is_named(tmp_path):
    one = trainer(tmp_path, methods.grpo(4).but(allocator=Silent()))
    with pytest.raises(ValueError, match=r"allocator: Silent\(\) asked for a stage of no rollouts"):
        one.train()


def test_a_reward_that_is_not_finite_is_named(tmp_path):
    def infinite(completions, **_):
        return [math.inf] * len(completions)

    match = "reward_funcs: a reward is inf; finite numbers or None are needed"
    with pytest.raises(ValueError, match=match):
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


def test_trl_s_defaults_are_read_from_its_configuration():
    from workbench.trl.setup import DEFAULTS

    assert DEFAULTS["num_generations"] == trl.GRPOConfig.num_generations == 8
    assert DEFAULTS["loss_type"] == "dapo"
