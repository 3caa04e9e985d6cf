"""The classes that verl's v1 trainer loads by name; `workbench.verl.configuration` gives the keys.

A training step with them: the trainer draws prompts and hands them to `AgentLoopManager`, which
holds them back. The trainer then asks `ReplayBuffer` for the step's batch, and this plays a round
of the method: counts from the allocator, generation, rewards, further requests where the allocator
has any, replay, selector, advantages. Rows that are not kept leave verl's queue, so
log-probabilities and updates are paid for kept rows alone. `CheckpointCallback` saves what the
method has learnt into verl's checkpoints.

Everything here runs in the trainer's one process, so there is one decision about counts, whatever
the number of workers. It is for `trainer.v1.trainer_mode=sync`, agent loops that return one row a
session, and rewards that are computed while sampling.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench import adapters
from workbench.methods import Method
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.rounds import Round
from workbench.verl.compatibility import check_installed
from workbench.verl.functions import ADVANTAGES, TRAIN, Verdict, register, row_advantages
from workbench.verl.settings import check_configuration, read_options

try:
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback as BaseCallback
    from verl.trainer.ppo.padding_utils import build_padding_position_ids
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as BaseBuffer
    from verl.utils import tensordict_utils as tensordicts
except ImportError:
    check_installed("TransferQueue")  # says what is missing
    raise

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # between two looks at the queue; a round may have many requests
ADVICE = (
    "This step's gradient is zero. Are any rollouts correct? The reward function's `acc` says so, "
    "or else sampler_kwargs.solved; see the metric workbench/correct."
)

# Columns that an old response would need of its own, beside its tokens.
NOT_REPLAYED = ("routed_experts", "teacher_ids", "teacher_logprobs", "multi_modal_inputs")

# `model.external_lib` imports this module in the trainer and in every worker. `register` looks at
# the version of verl, too.
register()


class AgentLoopManager(AgentLoopManagerTQ):
    """verl's manager, except that training prompts wait until the method has said their counts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waiting: list[TensorDict] = []

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Validation prompts go straight to the workers, training prompts wait."""
        if "validate" in prompts.keys():
            super().generate_sequences(prompts)
        else:
            self.waiting.append(prompts)

    def take(self) -> TensorDict:
        """The waiting prompts, as one batch."""
        prompts = tensordicts.concat_tensordict(self.waiting)
        self.waiting = []
        return prompts

    def dispatch(self, prompts: TensorDict, counts: np.ndarray) -> None:
        """Send prompts (P,) to the workers, with counts (P,) of rollouts to sample."""
        tensordicts.assign_non_tensor_stack(prompts, "__rollout_n__", counts.tolist())
        super().generate_sequences(prompts)


class ReplayBuffer(BaseBuffer):
    """verl's sampler, which plays a round of a method for every training step.

    `trainer.v1.sampler.sampler_kwargs` has the keys `method` (a paper's name, with its `arguments`,
    or what `configuration(method)` describes), `seed` and `solved`, see `settings.Options`.

    For a method with slots of your own, which a configuration cannot describe, derive a class with
    the method as an attribute, and name that class as the `custom_sampler`:

        class MySampler(ReplayBuffer):
            method = methods.grpo().but(selector=Shortest(4))
    """

    method: Method = None  # type: ignore[assignment]

    def __init__(self, *, sampler_kwargs: Any, refill_fn: Any, **options: Any) -> None:
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            refill_fn=refill_fn,
            poll_interval=POLL_SECONDS,
            **options,
        )
        # Plain dicts and lists, which is what the checks read.
        given = OmegaConf.to_container(sampler_kwargs, resolve=True)
        said = read_options(given, type(self).method)
        # A clone, so that what it learns stays in this trainer, also where the class has the
        # method.
        self.method = said.method.clone()
        self.driver = adapters.Driver(self.method, said.seed)
        self.verdict = Verdict(said.solved, self.method.reads_verdict)
        # verl passes a method of its trainer, which makes the agent loop manager later than this.
        self.trainer = refill_fn.__self__
        config = OmegaConf.to_container(self.trainer.config, resolve=True)
        check_configuration(config, self.method)

        rollout = config["actor_rollout_ref"]["rollout"]
        actor = config["actor_rollout_ref"]["actor"]
        self.temperature = rollout["temperature"]
        self.max_new_tokens = config["data"]["max_response_length"]
        # verl counts a mini-batch in prompts and multiplies it with the rollouts of a prompt.
        self.mini_batch = actor["ppo_mini_batch_size"] * rollout["n"]
        self.has_logprobs = rollout["calculate_log_probs"]
        self.drawn = 0  # prompts of the data so far
        self.seconds = 0.0  # of this round's slots

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        """The step's batch and metrics: for validation verl's own, for training a round."""
        if partition_id != TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        # A run that starts at a later step was resumed. It is restored here and not in the
        # constructor, since verl reads its checkpoint after that.
        if self.driver.round == 0 and global_steps > 1:
            self._restore(global_steps - 1)
        self.seconds = 0.0
        # Before the round takes its prompts, which `drawn` counts.
        epoch = self._epoch()
        queue = QueueRound(self, global_steps)
        self.driver.begin(
            global_steps,
            planned=self.trainer.total_training_steps,
            epoch=epoch,
            policy=queue,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        outcome = self.driver.play(queue.problems, queue.sample, queue.find_more, self._timed)
        with self._timed():
            rollouts = self.driver.learn()
        self.driver.check_not_empty(rollouts, ADVICE)
        metrics = {**adapters.round_metrics(rollouts, global_steps), **self.method.metrics()}
        metrics["seconds_schedule"] = self.seconds
        return queue.batch(outcome), adapters.with_prefix(metrics)

    def finished(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Queue keys and tags of all rows of these prompts, once every prompt has ended."""
        wanted = set(names)
        since = time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            # A prompt that failed has ended too. What it did not bring is noticed by the number of
            # rows.
            if wanted <= self.finished_keys[TRAIN] | self.failure_keys[TRAIN]:
                break
            since = self._wait_for_next_poll(TRAIN, since)
        return {key: tag for key, tag in self.partitions[TRAIN].items() if _group(key) in wanted}

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def _epoch(self) -> int:
        """Passes over the data so far."""
        loader = self.trainer.train_dataloader
        return self.drawn // (len(loader) * loader.batch_size)

    def _restore(self, step: int) -> None:
        """Read what was learnt up to a step, from the checkpoint that verl has resumed."""
        config = self.trainer.config.trainer
        folder = Path(config.default_local_dir) / f"global_step_{step}"
        if config.resume_mode == "resume_path":
            folder = Path(config.resume_from_path)
        if not (folder / adapters.FILE).exists():
            logger.warning("%s was made without a method, which begins anew", folder)
            return
        numbers = self.driver.load(folder, round=step)
        self.drawn = numbers["drawn"]
        self.verdict.known = bool(numbers["known"])


class CheckpointCallback(BaseCallback):
    """Saves what the method has learnt into each of verl's checkpoints."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **further: Any) -> None:
        """Called by the trainer after it has saved."""
        buffer = trainer.replay_buffer
        known = int(buffer.verdict.known)
        buffer.driver.save(checkpoint_dir, drawn=buffer.drawn, known=known)


class QueueRound:
    """The prompts and rows of one round in verl's queue.

    Row i of the round's table is `keys[i]` in the queue. Old responses that replay appends are
    behind them; they have no row in the queue until they are selected.
    """

    def __init__(self, buffer: ReplayBuffer, step: int) -> None:
        self.buffer = buffer
        self.step = step
        self.manager = buffer.trainer.agent_loop_manager
        self.prompts = self._take()
        self.problems = adapters.as_problems(list(tensordicts.get(self.prompts, "raw_prompt")))
        self.place = {problem.id: i for i, problem in enumerate(self.problems)}
        self.keys: list[str] = []
        self.tags: dict[str, dict[str, Any]] = {}
        self.old = 0  # old responses that were put into the queue

    def _take(self) -> TensorDict:
        """The prompts that wait for this round, and how many there were so far."""
        prompts = self.manager.take()
        self.buffer.drawn += len(prompts)
        return prompts

    # What `rounds.play` asks for

    def find_more(self, n: int, problems: list[Problem]) -> list[Problem]:
        """The next n prompts of verl's data loader, without those that are in the round already."""
        self.buffer.refill_fn(n)
        prompts = self._take()
        found = adapters.as_problems(list(tensordicts.get(prompts, "raw_prompt")))
        # At the end of an epoch the loader may give a prompt once more. The places below count all
        # prompts drawn, since repeated ones stay in the batch unused.
        new = [i for i, problem in enumerate(found) if problem.id not in self.place]
        further = [found[i] for i in new]
        size = len(self.prompts)
        self.prompts = tensordicts.concat_tensordict([self.prompts, prompts])
        self.place |= {found[i].id: size + i for i in new}
        return further

    def sample(
        self, problems: list[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        """Generate rollouts, wait for them, and read their scores, see `rounds.play`."""
        # verl gets only prompts with a count, and everything below goes by their places.
        asked = np.flatnonzero(counts)
        batch = tensordicts.index_select_tensor_dict(
            self.prompts, [self.place[problems[i].id] for i in asked]
        )
        # The sessions of a request are numbered from 0 again, so each request of a prompt is a
        # group of its own in the queue.
        names = [f"{uid}-{stage}" for uid in tensordicts.get(batch, "uid")]
        tensordicts.assign_non_tensor_stack(batch, "uid", names)
        waiting = {"is_prompt": True, "status": "pending", "global_steps": self.step}
        tq.kv_batch_put(keys=names, partition_id=TRAIN, tags=[dict(waiting) for _ in names])
        self.manager.dispatch(batch, counts[asked])
        rows = self.buffer.finished(names)
        tq.kv_clear(partition_id=TRAIN, keys=names)

        missing = int(counts.sum()) - len(rows)
        if missing:
            logger.warning("step %d: %d rollouts did not come back", self.step, missing)
        if not rows:
            raise RuntimeError(
                f"step {self.step}: no rollout came back; the log has the agent loop's errors"
            )
        place = dict(zip(names, asked))
        # Rollouts end in any order. In the table those of a problem stand together, in the order of
        # their sessions, so that a run does not depend on which worker was faster.
        keys = sorted(rows, key=lambda key: (place[_group(key)], _session(key)))
        self.keys += keys
        self.tags |= rows
        owners = np.array([problems[place[_group(key)]].id for key in keys])
        return self.buffer.driver.score(self._table(keys, owners), problems, before, stage)

    def _table(self, keys: list[str], names: np.ndarray) -> Rollouts:
        """The rows of the queue as rollouts."""
        buffer = self.buffer
        fields = ["prompts", "responses", "response_mask", "rm_scores", "extra_fields"]
        if buffer.has_logprobs:
            fields.append("rollout_log_probs")
        data = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=fields)
        if buffer.method.replay is not None and not all(map(torch.all, data["response_mask"])):
            raise ValueError(
                "replay: the responses hold tokens that the model did not write, such as those of "
                "tools, and an old response does not say which they are; use replay=None"
            )
        response = _ragged(data["responses"], np.int32)
        # As numbers of verl's own single precision, so that sums that differ by its rounding alone
        # are equal.
        reward = np.array([float(row.double().sum().float()) for row in data["rm_scores"]])
        tokenizer = buffer.trainer.tokenizer
        # A response may end exactly at the limit, so it is cut off only if it lacks the end token.
        ends = np.array([tokens[-1] == tokenizer.eos_token_id for tokens in response])
        is_long = response.lengths >= buffer.max_new_tokens
        columns: dict[str, Any] = {}
        if buffer.has_logprobs:
            columns["old_logprobs"] = _ragged(data["rollout_log_probs"], np.float32)
        if buffer.driver.needs & {"entropy", "token_entropy"}:
            entropy = self._model_pass(keys, "entropy")
            columns["token_entropy"] = _ragged(entropy, np.float32)
            pairs = zip(entropy, data["response_mask"])
            columns["entropy"] = [float((row * mask).sum() / mask.sum()) for row, mask in pairs]
        return Rollouts(
            names,
            prompt=_ragged(data["prompts"], np.int32),
            response=response,
            text=tokenizer.batch_decode(list(data["responses"]), skip_special_tokens=True),
            truncated=is_long & ~ends,
            reward=reward,
            **adapters.verdict_columns(buffer.verdict(reward, _acc(data["extra_fields"]))),
            **columns,
        )

    def logprobs(self, rollouts: Rollouts, temperature: float) -> torch.Tensor:
        """Log-probabilities of old responses under the current weights (R, T), at verl's
        temperature: replay asks for them as of a policy.
        """
        keys = [self._put_old(rollouts, row) for row in range(len(rollouts))]
        values = self._model_pass(keys, "old_log_probs")
        # They have no place in the queue until they are selected.
        tq.kv_clear(partition_id=TRAIN, keys=keys)
        for key in keys:
            del self.tags[key]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)

    def _model_pass(self, keys: list[str], column: str) -> list[torch.Tensor]:
        """What one pass of verl's training model says of each row's tokens, (T,) each."""
        trainer = self.buffer.trainer
        # verl may fill the batch up with padding rows of its own, which must not stay in the queue.
        batch = trainer._balance_batch(self._meta(keys), metrics={})
        trainer._compute_old_log_prob(batch, metrics={})
        padding = sorted(set(batch.keys) - set(keys))
        if padding:
            tq.kv_clear(partition_id=TRAIN, keys=padding)
        values = tq.kv_batch_get(keys, TRAIN, select_fields=[column])[column]
        # verl may compute in bfloat16, which NumPy does not know and in which means are coarse.
        return [row.float() for row in values]

    # What goes back to verl

    def batch(self, outcome: Round) -> KVBatchMeta:
        """The selected rows as the trainer's batch, with their advantages; all others leave the
        queue.
        """
        objective = self.buffer.method.objective
        advantages = row_advantages(outcome, objective, self.buffer.mini_batch)
        rows = outcome.rows
        if not len(rows):
            # verl cannot skip a step, so one row goes on, with advantage zero.
            rows = np.zeros(1, dtype=np.int64)
            nothing = np.zeros(outcome.rollouts.lengths[0])
            advantages = Ragged.of([nothing], np.float64)

        kept = [
            self.keys[row] if row < len(self.keys) else self._put_old(outcome.rollouts, row)
            for row in rows
        ]
        prompts = list(tensordicts.get(self.prompts, "uid"))
        # Rows that are not trained on must not stay in the queue.
        dropped = sorted(set(self.keys) - set(kept))
        tq.kv_clear(partition_id=TRAIN, keys=[*prompts, *dropped])
        # With its key for a uid, a row finds its advantages again, see `functions.from_queue`.
        fields = [
            {"uid": key, ADVANTAGES: torch.as_tensor(row, dtype=torch.float32)}
            for key, row in zip(kept, advantages)
        ]
        _put(kept, fields)
        return self._meta(kept)

    def _meta(self, keys: list[str]) -> KVBatchMeta:
        """Rows of the queue as verl's trainer names them."""
        return KVBatchMeta(partition_id=TRAIN, keys=keys, tags=[self.tags[key] for key in keys])

    # Old responses

    def _put_old(self, rollouts: Rollouts, row: int) -> str:
        """Put an old response into the queue, and return its key.

        Prompt and response are its own. Everything else is that of a new row, of the same problem
        where there is one.
        """
        new = rollouts.problem[: len(self.keys)]
        same = np.flatnonzero(new == rollouts.problem[row])
        # verl's rows have more columns than this package knows of, so an old response begins as a
        # copy of a new row.
        template = self.keys[same[0]] if len(same) else self.keys[0]
        stored = tq.kv_batch_get(keys=[template], partition_id=TRAIN)[0]
        fields = {name: stored[name] for name in stored.keys()}
        for name in NOT_REPLAYED:
            value = fields.get(name)
            if isinstance(value, torch.Tensor) or value:
                raise ValueError(
                    f"replay: the rows have {name}, which cannot be kept for old responses; use "
                    "replay=None"
                )
        if not len(same):
            fields["reward_model"] = {}  # another problem's answer

        prompt = torch.as_tensor(rollouts.prompt[row], dtype=torch.int64)
        response = torch.as_tensor(rollouts.response[row], dtype=torch.int64)
        tokens = torch.cat([prompt, response])
        mask = torch.ones_like(response)
        scores = torch.zeros(len(response))
        # verl puts a rollout's reward at its last token and sums over tokens.
        scores[-1] = float(rollouts.reward[row])
        fields |= {
            "prompts": prompt,
            "responses": response,
            "response_mask": mask,
            "loss_mask": mask,
            "input_ids": tokens,
            "position_ids": build_padding_position_ids(
                fields["position_ids"], torch.ones_like(tokens)
            ),
            "rm_scores": scores,
            "extra_fields": {},
        }
        if self.buffer.has_logprobs:
            fields["rollout_log_probs"] = torch.as_tensor(rollouts.old_logprobs[row])

        version = int(rollouts.round[row]) - 1  # the weights that sampled it, as verl counts them
        self.old += 1
        # In the form group_session_output that `_group` and `_session` read, and a group of its
        # own.
        key = f"{_group(template)}-old{self.old}_0_0"
        self.tags[key] = {
            **self.tags[template],
            "prompt_len": len(prompt),
            "response_len": len(response),
            "seq_len": len(tokens),
            "min_global_steps": version,
            "max_global_steps": version,
        }
        _put([key], [fields], tags=[self.tags[key]])
        return key


def _put(keys: list[str], rows: list[dict[str, Any]], **options: Any) -> None:
    """Write columns of rows into the queue."""
    fields = tensordicts.list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=keys, partition_id=TRAIN, fields=fields, **options)


def _group(key: str) -> str:
    """The group of a row's key, which is `group_session_output`."""
    return key.split("_")[0]


def _session(key: str) -> int:
    """The number of the rollout within its group; ValueError for a session of several rows."""
    _, session, output = key.split("_")
    if int(output):
        raise ValueError(
            "agent loop: it returns several rows a session, which the method's groups cannot tell "
            "apart"
        )
    return int(session)


def _acc(extra_fields: Any) -> list[Any]:
    """What the reward function said under `acc`, None where it said nothing."""
    found = []
    for value in extra_fields:
        further = tensordicts.unwrap_non_tensor_data(value)
        found.append(further.get("reward_extra_info", {}).get("acc"))
    return found


def _ragged(column: Any, dtype: Any) -> Ragged:
    """A column of the queue, rows of one length or of many."""
    return Ragged.of([row.cpu().numpy() for row in column], dtype)
