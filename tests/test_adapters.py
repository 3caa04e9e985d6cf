"""Every method finds the same numbers in every trainer: the contract of the adapters.

All trainers are given the same scripted rollouts here, so whatever differed would be an adapter's.
"""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

from small_methods import NAMES, small
from trl_cases import Dataset, trainer
from verl_cases import Rows

from examples import verl_loop as loop
from workbench import methods, verl
from workbench import trl as workbench_trl
from workbench.adapters import (
    Driver,
    as_problems,
    check_fits,
    round_metrics,
    row_weights,
    token_advantages,
)
from workbench.adapters import Verdict as VerdictOfRewards
from workbench.pools import Pool
from workbench.rollouts import Ragged, Rollouts
from workbench.rounds import Round
from workbench.slots import COURSE_NEEDS, NEEDS
from workbench.trl.table import Verdict

LEVELS = [1, 2, 3] * 4
PROMPTS = [f"{a}+{b}=" for a in (1, 2, 3) for b in (4, 5, 6, 7)]
PROBLEMS = [replace(problem, level=level) for problem, level in zip(as_problems(PROMPTS), LEVELS)]
ROUNDS = 4  # the fourth begins the second epoch
A_ROUND = 4  # problems
LIMIT = 8  # tokens of a response
# Methods that steer the sampler are refused, since these trainers sample by themselves.
EVERY = [name for name in NAMES if not small(name).needs & COURSE_NEEDS]


def not_carried(trainer):
    """Names of the methods for which a trainer has neither the loss nor a pool of problems."""
    surrogates = {"trl": ("clip", "cispo", "sapo"), "verl": ("clip",)}[trainer]
    chooses = {"trl": True, "verl": False}[trainer]
    return {
        name
        for name in EVERY
        if small(name).objective.surrogate not in surrogates
        or ("problem_choice" in small(name).needs and not chooses)
    }


NOT_IN_TRL = not_carried("trl")
NOT_IN_VERL = not_carried("verl")


class Script:
    """What is sampled: the i-th response to a prompt in a round is the same in every trainer."""

    def begin(self, number):
        self.number = number
        self.drawn = {}
        start = (number - 1) * A_ROUND % len(PROMPTS)
        return PROMPTS[start : start + A_ROUND]

    def next(self, prompt):
        """Tokens of the next response to a prompt, its reward, and its number in the round."""
        draw = self.drawn[prompt] = self.drawn.get(prompt, -1) + 1
        place = PROMPTS.index(prompt)
        rng = np.random.default_rng([self.number, draw, place])
        length = int(rng.integers(1, LIMIT + 1))
        tokens = rng.integers(4, 14, length).tolist()
        if length < LIMIT:
            tokens[-1] = 1  # the tokenizer's end; a response of the full length is cut off
        # The first prompts are hard, and the last ones are easy.
        return tokens, float(rng.random() < place / (len(PROMPTS) - 1)), draw


def trained_on(outcome, objective):
    """What a round trains on: problem and number of each row, and the advantage of each token."""
    weights = row_weights(outcome, objective.loss_aggregation)
    advantages = token_advantages(outcome, weights * outcome.rollouts["gradient"][outcome.rows])
    chosen = outcome.rollouts.take(outcome.rows)
    return [
        (str(chosen.problem[i]), int(chosen.draw[i]), advantages[i].tolist())
        for i in range(len(chosen))
    ]


def approximately(rows):
    return [(problem, draw, pytest.approx(values, abs=1e-6)) for problem, draw, values in rows]


@functools.cache
def plainly(name):
    """What every round of a method trains on in a trainer that only samples, and the metrics."""
    script = Script()
    driver = Driver(small(name).clone(), seed=0)
    pool = Pool(PROBLEMS)

    def sample(problems, counts, before, stage):
        asked = [problem for problem, n in zip(problems, counts) for _ in range(n)]
        tokens, rewards, draw = zip(*(script.next(problem.prompt) for problem in asked))
        size = len(asked)
        response = Ragged.of(tokens, np.int32)
        entropy = Ragged(np.float32(0.1) * response.values.astype(np.float32), response.offsets)
        table = Rollouts(
            np.array([problem.id for problem in asked]),
            prompt=Ragged.of([[1]] * size, np.int32),
            response=response,
            reward=np.array(rewards),
            correct=np.array(rewards) == 1,
            truncated=np.array([len(row) == LIMIT for row in tokens]),
            old_logprobs=Ragged(-entropy.values, entropy.offsets),
            entropy=np.array([entropy[i].astype(np.float64).mean() for i in range(size)]),
            token_entropy=entropy,
        )
        found = driver.score(table, problems, before, stage)
        assert found.draw.tolist() == list(draw)
        return found

    def find_more(n, problems):
        taken = frozenset(problem.id for problem in problems)
        return driver.method.curriculum.choose(pool, n, replace(driver.context, taken=taken))

    def logprobs(old, temperature):
        return -0.1 * torch.as_tensor(old.response.padded(0, "right")).float()

    rounds = []
    for number in range(1, ROUNDS + 1):
        prompts = script.begin(number)
        curriculum = driver.method.curriculum
        policy = SimpleNamespace(logprobs=logprobs)
        epoch = (number - 1) * A_ROUND // len(PROMPTS)
        driver.begin(epoch=epoch, policy=policy, max_new_tokens=LIMIT)
        problems = as_problems(prompts) if curriculum.in_order else find_more(A_ROUND, [])
        if not curriculum.in_order:
            driver.context = replace(driver.context, epoch=curriculum.epoch)
        outcome = driver.play(problems, sample, find_more)
        metrics = round_metrics(driver.learn(), number)
        rounds.append((trained_on(outcome, driver.method.objective), metrics))
    return rounds


# TRL


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A trainer of TRL whose draws are scripted: no model is run, and nothing is updated."""
    rows = [{"prompt": p, "answer": "", "level": level} for p, level in zip(PROMPTS, LEVELS)]
    out = tmp_path_factory.mktemp("trl")
    found = trainer(out, methods.grpo(4), data=Dataset.from_list(rows))
    found.num_generations = 1
    found.args.generation_batch_size = A_ROUND
    found.max_completion_length = LIMIT

    def draw(rows):
        tokens, rewards, _ = zip(*(found.script.next(row["prompt"]) for row in rows))
        prompt = torch.ones((len(rows), 1), dtype=torch.int64)
        scores = np.array(rewards, dtype=np.float32)[:, None]
        return {"prompt_ids": prompt, "prompt_mask": prompt}, (scores, tokens, [""] * len(rows))

    def score_tokens(model, batch, entropy=False):
        entropies = 0.1 * batch["completion_ids"].float()
        return -entropies, entropies

    found.draw = draw
    found.score_tokens = score_tokens
    found.micro_batches = lambda outcome, filler: []
    return found


@pytest.mark.parametrize("name", [*EVERY, "by_signal"])
def test_trl_trains_on_the_same_rows_with_the_same_advantages(name, one):
    method = small(name)
    one.driver = Driver(method.clone(), seed=0)
    one.verdict = Verdict(None, ["right"], method.reads_verdict)
    one.script = Script()
    for number, (expected, metrics) in enumerate(plainly(name), start=1):
        one._metrics["train"].clear()
        one._play_round([{"prompt": prompt} for prompt in one.script.begin(number)])
        assert trained_on(one.driver.outcome, method.objective) == approximately(expected)
        one.driver.learn()
        logged = {key.removeprefix("workbench/"): v for key, (v,) in one._metrics["train"].items()}
        finite = {key: value for key, value in metrics.items() if np.isfinite(value)}
        assert {key: logged[key] for key in finite} == pytest.approx(finite)


# verl


def prompts_of_verl(texts):
    return Rows({}, {"raw_prompt": np.array(texts, dtype=object)})


def generated(script, wanted):
    texts = wanted.non_tensor_batch["raw_prompt"]
    tokens, rewards, draw = zip(*(script.next(text) for text in texts))
    responses = torch.as_tensor(Ragged.of(tokens, np.int64).padded(0, "right"))
    responses = torch.nn.functional.pad(responses, (0, LIMIT - responses.shape[1]))
    lengths = torch.tensor([len(row) for row in tokens])
    mask = (torch.arange(LIMIT) < lengths[:, None]).long()
    scores = torch.zeros(len(texts), LIMIT)
    scores[torch.arange(len(texts)), lengths - 1] = torch.tensor(rewards)
    tensors = {"responses": responses, "response_mask": mask, "token_level_scores": scores}
    return Rows(tensors, {"raw_prompt": texts, "draw": np.array(draw)})


IN_A_LOOP = [name for name in EVERY if small(name).needs <= loop.PROVIDES]


def test_methods_that_need_no_more_than_a_loop_gives_are_many():
    assert {"grpo", "pods", "knapsack", "aero", "ragen", "pruned", "asymmetric"} <= {*IN_A_LOOP}


@pytest.mark.parametrize("name", IN_A_LOOP)
def test_verl_trains_on_the_same_rows_with_the_same_advantages(name):
    method = small(name).clone()
    script = Script()
    for number, (expected, metrics) in enumerate(plainly(name), start=1):
        prompts = prompts_of_verl(script.begin(number))
        options = {"step": number, "epoch": (number - 1) * A_ROUND // len(PROMPTS)}
        if not expected:
            with pytest.raises(ValueError, match=f"method {name!r}: it kept none"):
                loop.play(method, prompts, functools.partial(generated, script), **options)
            continue
        batch = loop.play(method, prompts, functools.partial(generated, script), **options)
        found = zip(
            batch.non_tensor_batch["uid"].tolist(),
            batch.non_tensor_batch["draw"].tolist(),
            (
                row[mask.bool()].tolist()
                for row, mask in zip(batch.batch["advantages"], batch.batch["response_mask"])
            ),
        )
        assert list(found) == approximately(expected)
        finite = {f"workbench/{k}": v for k, v in metrics.items() if np.isfinite(v)}
        del finite["workbench/tokens_sampled"]  # a loop on `DataProto` need not keep the prompts
        assert {key: batch.meta_info["metrics"][key] for key in finite} == pytest.approx(finite)


# What both are told of a method


@pytest.mark.parametrize("name", EVERY)
def test_a_method_trains_on_as_many_rollouts_as_it_says(name):
    method = small(name)
    for rows, metrics in plainly(name):
        counts = np.unique([problem for problem, _, _ in rows], return_counts=True)[1]
        if method.trained.of == "each":
            assert set(counts) <= {method.trained.n}
        if method.trained.of == "average":
            assert len(rows) == method.trained.n * metrics["problems"]


@pytest.mark.parametrize("name", EVERY)
def test_both_adapters_are_told_the_same_of_a_method(name):
    method = getattr(methods, name)()
    assert verl.trained_per_problem(method) == method.trained.n
    if name in NOT_IN_TRL:
        with pytest.raises(ValueError, match="surrogate"):
            workbench_trl.arguments(method)
    else:
        words = workbench_trl.arguments(method)
    if name in NOT_IN_VERL:
        with pytest.raises(ValueError, match=r"curriculum|surrogate"):
            verl.configuration(method)
        return
    keys = verl.configuration(method)
    actor = "actor_rollout_ref.actor"
    assert keys["actor_rollout_ref.rollout.n"] == method.trained.n
    assert keys[f"{actor}.clip_ratio_low"] == words["epsilon"]
    assert keys[f"{actor}.clip_ratio_high"] == words["epsilon_high"]
    assert keys[f"{actor}.entropy_coeff"] == words["entropy_coef"]
    assert keys.get(f"{actor}.kl_loss_coef", 0.0) == words["beta"]


def test_a_trainer_that_gives_nothing_carries_what_needs_nothing():
    for name in EVERY:
        method = getattr(methods, name)()
        check_fits(method, "Run", NEEDS)
        if method.needs:
            with pytest.raises(ValueError, match="a bare loop does not provide"):
                check_fits(method, "a bare loop", ())
        else:
            check_fits(method, "a bare loop", ())
    assert methods.grpo().needs == methods.pods().needs == set()
    assert methods.cppo(dynamic_allocation=False).needs == set()
    limits = {"with a penalty": {"row_weights"}}
    check_fits(methods.grpo(), "a loop", NEEDS, limits)
    with pytest.raises(ValueError, match="a loop with a penalty"):
        check_fits(methods.pruned(), "a loop", NEEDS, limits)


def test_advantages_of_tokens_hold_the_weights_of_their_rows():
    rollouts = Rollouts(problem=["a"] * 3, response=Ragged.of([[5], [6, 7], [8]], np.int32))
    rows, weights = np.array([1, 0]), np.array([2.0, 0.5])
    by_token = Ragged.of([[1, -1], [3]], np.float64)
    for advantages, expected in ((np.array([1.0, 3.0]), [2, 2, 1.5]), (by_token, [2, -2, 1.5])):
        found = token_advantages(Round(rollouts, rows, advantages), weights)
        assert (found.lengths.tolist(), found.values.tolist()) == ([2, 1], expected)


def test_a_reward_of_one_or_more_is_correct_after_the_first_warning(caplog):
    verdict = VerdictOfRewards(needed=True, advice="say it")
    rewards = np.array([0.5, 1, 2, 0])
    assert verdict.of_rewards(rewards, first=False).tolist() == [0, 1, 1, 0]
    assert verdict.of_rewards(rewards, first=False).tolist() == [0, 1, 1, 0]
    [message] = caplog.messages
    assert message.startswith("a reward is 0.5") and "say it" in message
    with pytest.raises(ValueError, match="correct=None"):
        verdict.of_rewards(rewards, first=True)
