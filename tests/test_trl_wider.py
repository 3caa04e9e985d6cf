"""The TRL trainer's methods with tools, environments, Liger's loss and vLLM's two modes.

Where the real thing needs a GPU, the lowest part of it is a stand-in: vLLM's engine and client are
replaced by a second copy of the tiny model, and everything of TRL around them runs.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl
import trl_cases
from small_methods import small
from test_families import written
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl_cases import (
    dataset,
    dealt,
    gradient,
    hand_made_round,
    logged,
    right,
    same,
    shaken,
    trained,
    trainer,
    weights,
)

from workbench import methods
from workbench import trl as workbench_trl
from workbench.objectives import Objective
from workbench.rollouts import Ragged
from workbench.slots import Selection, Slot
from workbench.trl.trainer import COUNTING

pytestmark = pytest.mark.slow

LATEST = tuple(map(int, trl.__version__.split(".")[:2])) >= (1, 16)


def rounds_of(one):
    """A list that fills up with the outcome of each round and its micro-batches."""
    seen = []
    make = one.micro_batches

    def kept(outcome, *rest):
        batches = make(outcome, *rest)
        seen.append((outcome, batches))
        return batches

    one.micro_batches = kept
    return seen


# Tools and environments

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
    "{{ c['function']['name'] }}{{ c['function']['arguments'] }}{% endfor %}{% endfor %}"
)
RESULT = "<result>"


def tokenizer_of_tools(**schema):
    tokenizer = AutoTokenizer.from_pretrained(trl_cases.MODEL)
    tokenizer.chat_template = TEMPLATE
    for name, value in schema.items():
        setattr(tokenizer, name, value)
    return tokenizer


def parse(tokenizer, ids, prefix=None, tools=None):
    """The model calls a tool once, after its first turn."""
    message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
    if RESULT not in tokenizer.decode(prefix):
        call = {"name": "lookup", "arguments": {"key": "a"}}
        message["tool_calls"] = [{"type": "function", "function": call}]
    return message


def lookup(key: str) -> str:
    """Look up a number.

    Args:
        key: What to look up.
    """
    return RESULT


def talk(n=8):
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]}
        for row in dataset(n)
    ]
    return trl_cases.Dataset.from_list(rows)


def said_right(completions, answer, **_):
    """Whether the text of any turn is right."""
    texts = [" ".join(turn["content"] for turn in turns) for turns in completions]
    return right(texts, answer)


@pytest.mark.parametrize("family", COUNTING)
def test_a_model_that_counts_positions_does_not_count_the_padding(family, tmp_path):
    layers = {"attention_types": [[["global", "local"], 1]]} if family == "gpt_neo" else {}
    model = str(written(tmp_path / "model", family, **layers))
    method = methods.grpo(4, objective=Objective(kl=0.1))
    one = trainer(tmp_path, method, model=model, disable_dropout=True)
    rows = hand_made_round().rollouts
    rows = rows.assign(prompt=rows.prompt.first(np.arange(2, 9).clip(max=5)))
    for model in (one.model, one.ref_model):
        scored, _ = one.score_tokens(model, one.tokens(rows))
        for row, (prompt, response) in enumerate(zip(rows.prompt, rows.response)):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
            alone = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            expected = alone[range(len(response)), response.tolist()]
            torch.testing.assert_close(scored[row, : len(response)], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["pods", "dapo", "aero", "cbs"])
def test_methods_train_with_tools_and_pass_over_what_tools_said(name, tmp_path, monkeypatch):
    monkeypatch.setattr("trl.trainer.grpo_trainer.parse_response", parse)
    tokenizer = tokenizer_of_tools(response_schema={"type": "object"})
    options = {"tools": [lookup], "processing_class": tokenizer}
    settings = {"data": talk(16), "reward": said_right, "max_steps": 1}
    settings["max_completion_length"] = 40
    one = trainer(tmp_path, small(name), options=options, **settings)
    seen = rounds_of(one)
    trained(one)
    assert all(value > 0 for value in logged(one, "tools/call_frequency")[0])
    (outcome, batches) = seen[0]
    rollouts = outcome.rollouts
    by_model = np.array([mask.sum() for mask in rollouts["tool_mask"]])
    answered = np.array([RESULT in text for text in rollouts.text])
    assert answered.any()
    assert np.array_equal(rollouts.lengths - by_model, len(RESULT) * answered)
    for batch in batches:
        rows = batch["workbench"][0]
        if len(rows):
            shown = (batch["completion_mask"] * batch["tool_mask"]).sum(1)
            assert shown.tolist() == by_model[rows].tolist()
        assert batch["num_items_in_batch"] == by_model[outcome.rows].sum()


def test_tokens_of_tools_get_no_gradient(tmp_path):
    """A response whose later half came from a tool has the gradient of its first half alone."""
    one = shaken(trainer(tmp_path, methods.grpo(4)))
    outcome = hand_made_round()
    rollouts = outcome.rollouts
    halves = [np.arange(length) < (length + 1) // 2 for length in rollouts.lengths]
    masks = Ragged.of(halves, np.float32)
    masked = type(outcome)(rollouts.assign(tool_mask=masks), outcome.rows, outcome.advantages)
    found = gradient(one, 2, masked)
    # The same by advantages of tokens, with the mean over the tokens of the model.
    rows = rollouts.take(outcome.rows)
    kept = np.concatenate([masks[row] for row in outcome.rows])
    values = np.repeat(outcome.advantages, rows.lengths) * kept * (len(kept) / kept.sum())
    by_token = hand_made_round(advantages=Ragged(values, rows.response.offsets))
    assert found.abs().max() > 1e-3
    assert torch.allclose(found, gradient(one, 2, by_token), atol=1e-5)


class Counting:
    """An environment without tools that owns the reward."""

    made = 0

    def __init__(self):
        Counting.made += 1
        self.answer = None

    def reset(self, answer, **_):
        self.answer = answer

    def get_reward(self):
        return float(len(self.answer) == 1)


def test_an_environment_owns_the_reward(tmp_path):
    options = {"environment_factory": Counting, "processing_class": tokenizer_of_tools()}
    method = methods.dapo(4, overlong=0)
    settings = {"data": talk(16), "reward": None, "max_steps": 1, "num_generations": 4}
    one = trainer(tmp_path, method, options=options, **settings)
    seen = rounds_of(one)
    trained(one)
    rollouts = seen[0][0].rollouts
    assert set(rollouts.reward) <= {0.0, 1.0}
    assert np.array_equal(rollouts.correct, rollouts.reward == 1)
    assert logged(one, "rewards/Counting/mean")[0]
    assert Counting.made >= 16  # a rollout has an environment of its own


class Filling(Counting):
    """An environment that plays on the board of its row."""

    def reset(self, board, **_):
        board.append("x")
        self.board = board

    def get_reward(self):
        return float(len(self.board))


def test_every_rollout_plays_on_a_board_of_its_own(tmp_path):
    data = talk(8).map(lambda row: {"board": ["o"]})
    options = {"environment_factory": Filling, "processing_class": tokenizer_of_tools()}
    settings = {"data": data, "reward": None, "max_steps": 1}
    one = trained(trainer(tmp_path, methods.grpo(4), options=options, **settings))
    assert logged(one, "rewards/Filling/mean", "reward_std") == [[2.0], [0.0]]


class Posing(Counting):
    """An environment that also poses the problem."""

    def reset(self, answer, **_):
        self.answer = answer
        return f"Say {answer}."


@pytest.mark.parametrize("name", ["pods", "dapo", "mopps"])
def test_an_environment_may_bring_the_prompt(name, tmp_path):
    rows = [{"answer": row["answer"]} for row in dataset(16)]
    one = trainer(
        tmp_path,
        small(name),
        options={"environment_factory": Posing, "processing_class": tokenizer_of_tools()},
        data=trl_cases.Dataset.from_list(rows),
        reward=None,
        max_steps=1,
    )
    seen = rounds_of(one)
    trained(one)
    rollouts = seen[0][0].rollouts
    # Rows of the same answer are problems of their own.
    assert len(set(rollouts.problem)) == logged(one, "workbench/problems")[0][0] >= 4


def test_an_environment_beside_a_reward_function_must_be_told_apart(tmp_path):
    options = {"environment_factory": Counting, "processing_class": tokenizer_of_tools()}
    settings = {"data": talk(8), "reward": said_right}
    match = "pass correct='said_right' or correct='Counting'"
    with pytest.raises(ValueError, match=match):
        trainer(tmp_path, small("aero"), options=options, **settings)


def test_a_rollout_function_samples_what_the_method_asks_for(tmp_path):
    asked = []

    def rollout(prompts, one):
        asked.append(len(prompts))
        ids = one.processing_class(text=prompts)["input_ids"]
        responses, _ = one._generate_single_turn(ids, None, {}, one.num_generations)
        return {"prompt_ids": ids, "completion_ids": responses, "logprobs": None}

    options = {"rollout_func": rollout}
    one = trained(trainer(tmp_path, methods.pods(8, 4), options=options, max_steps=1))
    assert asked == [32]
    assert logged(one, "workbench/selected")[0] == [16]


# Liger


def test_methods_train_with_liger_s_loss(tmp_path, monkeypatch):
    """TRL's chunked log-probabilities; Liger's own kernels, which need Triton, are left out."""
    monkeypatch.setattr("transformers.trainer.apply_liger_kernel", lambda *_: None)
    if not LATEST:
        monkeypatch.setattr("trl.trainer.grpo_trainer.is_liger_kernel_available", lambda: True)
    method = methods.aero(explore=4, total=8, n_max=8, kl=0.01)
    plain = shaken(trainer(tmp_path, method))
    liger = shaken(trainer(tmp_path, method, use_liger_kernel=True))
    for steps in (1, 8):
        expected = gradient(plain, steps)
        assert torch.allclose(gradient(liger, steps), expected, atol=1e-5)
    cbs = trainer(tmp_path, small("cbs"), use_liger_kernel=True, max_steps=1)
    before = weights(cbs)
    assert not same(before, weights(trained(cbs)))


# vLLM


class Engine:
    """What vLLM's engine does for TRL, by a copy of the model with weights of its own."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
        self.named = dict(self.model.named_parameters())
        self.loaded = 0
        self.requests = []

    @torch.no_grad()
    def load_weights(self, pairs):
        for name, value in pairs:
            self.named[name].copy_(value)
            self.loaded += 1

    def sample(self, prompts, n, max_tokens):
        """(token ids, log-probabilities) of n responses to each prompt."""
        self.requests.append((len(prompts), n))
        responses = []
        for prompt in prompts:
            out = self.model.generate(
                torch.tensor([prompt] * n),
                max_new_tokens=max_tokens,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
                eos_token_id=1,
                output_scores=True,
                return_dict_in_generate=True,
            )
            scores = torch.log_softmax(torch.stack(out.scores, dim=1), dim=-1)
            for row, ids in enumerate(out.sequences[:, len(prompt) :].tolist()):
                length = ids.index(1) + 1 if 1 in ids else len(ids)
                logprobs = [scores[row, i, ids[i]].item() for i in range(length)]
                responses.append((ids[:length], logprobs))
        return responses


class LLM:
    """`vllm.LLM` as TRL uses it in its own process."""

    def __init__(self, model, **_):
        self.engine = Engine(model)
        runner = SimpleNamespace(model=self.engine)
        worker = SimpleNamespace(model_runner=runner)
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(model_executor=executor)
        LLM.latest = self.engine

    def generate(self, prompts, sampling_params, use_tqdm):
        assert sampling_params.n == 1
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        outputs = []
        for prompt, (tokens, logprobs) in zip(
            ids, self.engine.sample(ids, 1, sampling_params.max_tokens)
        ):
            scored = [
                {token: SimpleNamespace(rank=1, logprob=value)}
                for token, value in zip(tokens, logprobs)
            ]
            output = SimpleNamespace(token_ids=tokens, logprobs=scored)
            outputs.append(SimpleNamespace(prompt_token_ids=prompt, outputs=[output]))
        return outputs

    def reset_prefix_cache(self):
        pass


class Client:
    """`trl.generation.vllm_client.VLLMClient` without its server."""

    def __init__(self, **_):
        self.engine = Engine(trl_cases.MODEL)
        Client.latest = self.engine

    def init_communicator(self, device):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def generate(self, prompts, n, max_tokens, **_):
        responses = self.engine.sample(prompts, n, max_tokens)
        return {
            "prompt_ids": prompts,
            "completion_ids": [ids for ids, _ in responses],
            "logprobs": [[[value] for value in logprobs] for _, logprobs in responses],
        }

    def update_named_params(self, metadata, parameters):
        self.engine.load_weights(parameters)

    def reset_prefix_cache(self):
        pass


@pytest.fixture
def vllm(monkeypatch):
    """The stand-ins, in the place of vLLM."""
    module = "trl.generation.vllm_generation"
    monkeypatch.setattr(f"{module}.is_vllm_available", lambda: True)
    monkeypatch.setattr(f"{module}.LLM", LLM, raising=False)
    monkeypatch.setattr(f"{module}.SamplingParams", SimpleNamespace, raising=False)
    monkeypatch.setattr(f"{module}.VLLMClient", Client)
    # For vLLM in its own process TRL says in the environment that this is one of several processes,
    # and the trainers of other tests would then look for the others.
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.mark.long
@pytest.mark.parametrize(
    "mode, name", [("colocate", "pods"), ("server", "ar3po"), ("colocate", "cbs")]
)
def test_both_modes_of_vllm_sample_with_the_weights_of_the_model(mode, name, vllm, tmp_path):
    settings = {"use_vllm": True, "vllm_mode": mode, "learning_rate": 1e-2}
    if name == "cbs":
        # Its ratios are of the log-probabilities that it computes itself.
        settings["vllm_importance_sampling_correction"] = False
    one = trainer(tmp_path, small(name), **settings)
    before = weights(one)
    seen = rounds_of(one)
    trained(one)
    assert not same(before, weights(one))
    engine = (LLM if mode == "colocate" else Client).latest
    assert engine.loaded == 2 * len(engine.named)  # before each round
    sampled = sum(prompts * n for prompts, n in engine.requests)
    assert sampled == sum(logged(one, "workbench/rollouts")[0])
    for outcome, _ in seen:
        rollouts = outcome.rollouts
        fresh = rollouts.take(rollouts.round == rollouts.round.max())
        # Without the correction nothing reads it, and old rows would lack it.
        assert ("sampling_per_token_logps" in fresh) == (name != "cbs")
        if name == "cbs":
            continue
        # The second round is sampled after an update, and still by the same policy.
        for reported, own in zip(fresh["sampling_per_token_logps"], fresh.old_logprobs):
            assert np.allclose(reported, own, atol=1e-4)
        ratios = np.concatenate(list(fresh["importance_sampling_ratio"]))
        assert np.allclose(ratios, 1, atol=1e-3)


class OffBy(workbench_trl.GRPOTrainer):
    """Reports probabilities of what it sampled that are a little off, as vLLM's may be."""

    def _generate_single_turn(self, prompt_ids, *args, **options):
        used = self.use_vllm
        self.use_vllm = False
        responses, _ = super()._generate_single_turn(prompt_ids, *args, **options)
        self.use_vllm = used
        if not used:
            return responses, None
        rows = zip(prompt_ids, responses)
        return responses, [[-1.0 - 0.01 * len(prompt)] * len(ids) for prompt, ids in rows]


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_what_a_sampler_reports_stays_with_its_rollout(mode, tmp_path):
    settings = {"vllm_importance_sampling_mode": mode, "max_steps": 1}
    one = trainer(tmp_path, methods.pods(8, 4), make=OffBy, **settings)
    one.use_vllm = True  # from here on TRL corrects for what the sampler reports
    seen = rounds_of(one)
    trained(one)
    outcome, _ = seen[0]
    rollouts = outcome.rollouts
    (batch,) = dealt(one, 1, outcome)
    for i, row in enumerate(batch["workbench"][0]):
        length = rollouts.lengths[row]
        reported = -1.0 - 0.01 * rollouts.prompt.lengths[row]
        found = batch["sampling_per_token_logps"][i, :length].tolist()
        assert found == pytest.approx([reported] * length)
        difference = rollouts.old_logprobs[row] - reported
        if mode == "token_truncate":
            expected = np.minimum(np.exp(difference), 3.0)
        else:
            whole = np.exp([difference.sum()])
            expected = np.where(whole > 3.0, 0.0, whole)
        ratio = batch["importance_sampling_ratio"][i, : len(expected)].tolist()
        assert ratio == pytest.approx(expected.tolist(), rel=1e-4)


# What is computed only when it is asked for


class Curious(Slot):
    """Reads entropies and log-probabilities."""

    needs = frozenset({"entropy", "old_logprobs"})

    def select(self, rollouts, context):
        assert (rollouts.entropy > 0).all()
        assert (rollouts.old_logprobs.values < 0).all()
        return Selection(np.arange(len(rollouts)))


def test_log_probabilities_are_computed_for_slots_that_need_them(tmp_path):
    curious = methods.grpo(4).but(selector=Curious())
    one = trainer(tmp_path, curious, max_steps=1)
    calls = []
    score = one.score_tokens
    one.score_tokens = lambda *args, **options: calls.append(1) or score(*args, **options)
    trained(one)
    assert len(calls) == 1
    plain = trainer(tmp_path, methods.grpo(4), max_steps=1)
    plain.score_tokens = None  # would fail if it were called
    trained(plain)
    assert plain.driver.needs == set()
