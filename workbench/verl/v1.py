"""The classes that verl's v1 trainer loads by name; `workbench.verl.integration.configuration` gives the keys that name them.

A training step with them: the trainer draws prompts and hands them to `AgentLoopManager`, which holds them back; the
trainer asks `ReplayBuffer` for the step's batch, and this drives the method: counts from the allocator, generation,
rewards, further stages where the allocator asks for them, then the selector. Rows that are not kept leave the queue, so
log-probabilities and updates are paid for kept rows only. `CheckpointCallback` saves what the allocator has learned.

Everything here runs in the trainer's one process: there is one decision about counts, whatever the number of workers.
Only for `trainer.v1.trainer_mode=sync`, single-output agent loops and rewards computed while sampling.
"""

import json
import time
from pathlib import Path

import numpy as np
import transfer_queue as tq
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback as BaseCallback
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as BaseBuffer
from verl.utils import tensordict_utils as tensordicts

from workbench.allocators import More
from workbench.analysis.metrics import effective_gradient_ratio
from workbench.records.checkpoints import join_arrays, split_arrays
from workbench.rollouts import Context, Rollouts
from workbench.verl import integration as verl

TRAIN = "train"  # the queue's partition of training rows
MEMORY, ARRAYS = "workbench.json", "workbench.safetensors"

verl.register()  # `model.external_lib` imports this module in the trainer and in every worker


class AgentLoopManager(AgentLoopManagerTQ):
    """verl's manager, except that training prompts wait until the sampler has decided their counts."""

    def __init__(self, config, *args, **kwargs):
        groups = config.algorithm.get("filter_groups")
        if groups is not None and groups.get("enable"):
            raise ValueError(
                "algorithm.filter_groups.enable=True: the method decides that; use DynamicSampling as its allocator"
            )
        super().__init__(config, *args, **kwargs)
        self.waiting = []

    def generate_sequences(self, prompts):
        """Validation prompts go straight to the workers, training prompts wait."""
        if "validate" in prompts.keys():
            super().generate_sequences(prompts)
        else:
            self.waiting.append(prompts)

    def take(self):
        """The waiting prompts, as one batch."""
        prompts, self.waiting = tensordicts.concat_tensordict(self.waiting), []
        return prompts

    def dispatch(self, prompts, counts):
        """Sends prompts (P,) to the workers, with counts (P,) of rollouts to sample."""
        tensordicts.assign_non_tensor_stack(prompts, "__rollout_n__", counts.tolist())
        super().generate_sequences(prompts)


class ReplayBuffer(BaseBuffer):
    """A sampler that runs a method's round: allocator, stages, selector, advantages.

    sampler_kwargs: `method` (a paper's name, with `arguments`, or a description), `seed` (0), `solved` (1.0): the reward
    from which a rollout counts as correct where the reward function returns no `acc`.
    """

    def __init__(self, trainer_mode, trainer_config, sampler_kwargs, refill_fn, **options):
        if trainer_mode != "sync":
            raise ValueError(
                f"trainer.v1.trainer_mode={trainer_mode!r}: only 'sync' samples and trains in turns, use that"
            )
        if trainer_config.get("parameter_sync_step", 1) != 1:
            raise ValueError(
                "trainer.v1.sync.parameter_sync_step: a round is one update of the trainer, use 1"
            )
        super().__init__(
            trainer_mode=trainer_mode,
            trainer_config=trainer_config,
            sampler_kwargs=sampler_kwargs,
            refill_fn=refill_fn,
            **options,
        )
        given = OmegaConf.to_container(sampler_kwargs, resolve=True)
        self.method, self.seed, self.solved = (
            verl.method_of(given),
            given.get("seed", 0),
            given.get("solved", 1.0),
        )
        self.allocation = verl.Allocation(self.method.allocator, self.seed, stages=True)
        self.trainer = (
            refill_fn.__self__
        )  # verl passes a method of the trainer, which makes the manager later than this
        self._resumed = False

    def sample(self, global_steps, partition_id, batch_size):
        """The step's batch and metrics. Validation is verl's own; a training step is one round of the method."""
        if partition_id != TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        if self.trainer.reward_loop_manager.reward_loop_worker_handles is None:
            raise ValueError(
                "reward.reward_model: a colocated reward model scores after sampling, too late for an allocator; "
                "use a reward function or reward.reward_model.enable_resource_pool=True"
            )
        self._resume(global_steps)
        keys, rollouts = self._round(global_steps)
        candidates = (
            np.arange(len(rollouts)) if self.allocation.keep is None else self.allocation.keep
        )
        rng = Context(self.seed, global_steps).rng("selector")
        pool = rollouts.take(candidates)
        chosen, advantages = verl.choose(pool, self.method.selector, self.method.advantage, rng)
        if not len(chosen):  # verl cannot skip a step: one row goes on, with advantage zero
            pool, candidates, chosen, advantages = (
                rollouts,
                np.arange(len(rollouts)),
                np.array([0]),
                np.zeros(1),
            )
        verl.remember(pool.take(chosen), advantages)
        self.allocation.learn(rollouts, global_steps)
        return self._keep(keys, candidates[chosen]), self._metrics(rollouts, advantages)

    def _round(self, step):
        """Drives the allocator: queue keys and `Rollouts` of the step, row by row, those of each stage together."""
        manager = self.trainer.agent_loop_manager
        prompts = manager.take()
        keys, parts, stage = [], [], 0
        request = self.allocation.start(_ids(prompts), step)
        while request is not None:
            if isinstance(request, More):
                self.refill_fn(request.n)
                more = manager.take()
                prompts = tensordicts.concat_tensordict([prompts, more])
                request = self.allocation.extend(_ids(more))
                continue
            stage_keys, part = self._sample(prompts, request, stage, step)
            keys, parts, stage = keys + stage_keys, [*parts, part], stage + 1
            request = self.allocation.proceed(Rollouts.concat(parts))
        tq.kv_clear(partition_id=TRAIN, keys=tensordicts.get(prompts, "uid"))
        if not keys:
            raise RuntimeError(
                f"step {step}: no rollout came back from {len(prompts)} prompts; see the agent loop's errors"
            )
        return keys, Rollouts.concat(parts)

    def _sample(self, prompts, counts, stage, step):
        """Generates counts (P,) rollouts and waits for them; their queue keys and scored rows."""
        asked = np.flatnonzero(counts)
        batch = tensordicts.index_select_tensor_dict(prompts, asked.tolist())
        uids, ids = tensordicts.get(batch, "uid"), _ids(batch)
        # a stage's sessions are numbered from 0 again, so each stage of a prompt is a group of its own in the queue
        names = [f"{uid}-{stage}" for uid in uids]
        tensordicts.assign_non_tensor_stack(batch, "uid", names)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in names]
        tq.kv_batch_put(keys=names, partition_id=TRAIN, tags=tags)
        self.trainer.agent_loop_manager.dispatch(batch, counts[asked])
        keys = self._finished(names)
        tq.kv_clear(partition_id=TRAIN, keys=names)
        if not keys:
            return [], _scored([], [], [], [], stage, step)
        place = {name: i for i, name in enumerate(names)}
        keys.sort(key=lambda key: (place[_group(key)], int(key.split("_")[1])))
        rows = [place[_group(key)] for key in keys]
        uids = [uids[row] for row in rows]
        tq.kv_batch_put(
            keys=keys, partition_id=TRAIN, fields=tensordicts.get_tensordict({"uid": uids})
        )
        rewards, correct = self._scores(keys)
        return keys, _scored(ids[rows], uids, rewards, correct, stage, step)

    def _finished(self, names):
        """The queue keys of all rows of these prompts, once every one of them has ended."""
        wanted, since = set(names), time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            if wanted <= self.finished_keys[TRAIN] | self.failure_keys[TRAIN]:
                break
            since = self._wait_for_next_poll(TRAIN, since)
        keys = [key for key in self.partitions[TRAIN] if _group(key) in wanted]
        if any(int(key.split("_")[2]) for key in keys):
            raise ValueError(
                "agent loop: it returns several rows a session, which the method's groups cannot tell apart"
            )
        return keys

    def _scores(self, keys):
        """Rewards (R,) float64 and correct (R,) bool of rows in the queue."""
        data = tq.kv_batch_get(
            keys=keys, partition_id=TRAIN, select_fields=["rm_scores", "extra_fields"]
        )
        rewards = np.array([float(row.double().sum()) for row in data["rm_scores"]])
        further = [
            getattr(value, "data", value).get("reward_extra_info", {})
            for value in data["extra_fields"]
        ]
        acc = [info.get("acc") for info in further]
        correct = [
            reward >= self.solved if value is None else float(value) == 1
            for reward, value in zip(rewards, acc)
        ]
        return rewards, np.array(correct)

    def _keep(self, keys, rows):
        """The rows as the trainer's batch; all others leave the queue."""
        kept = [keys[row] for row in rows]
        dropped = sorted(set(keys) - set(kept))
        if dropped:
            tq.kv_clear(partition_id=TRAIN, keys=dropped)
        return KVBatchMeta(
            partition_id=TRAIN, keys=kept, tags=[self.partitions[TRAIN][key] for key in kept]
        )

    def _metrics(self, rollouts, advantages):
        own = {
            "generated": len(rollouts),
            "kept": len(advantages),
            "stages": int(rollouts.stage.max()) + 1,
            "reward": float(rollouts.reward.mean()),
            "solved": float(rollouts.correct.mean()),
            "effective_gradient_ratio": effective_gradient_ratio(advantages),
            **self.allocation.metrics(),
        }
        return {f"workbench/{name}": value for name, value in own.items()}

    def _resume(self, step):
        """Before the first step of a resumed run: the allocator's memory, from the checkpoint that verl resumed."""
        if (
            not self._resumed
            and step > 1
            and getattr(self.allocation.allocator, "state_dict", dict)()
        ):
            config = self.trainer.config.trainer
            named = config.resume_mode == "resume_path"
            folder = Path(
                config.resume_from_path
                if named
                else Path(config.default_local_dir, f"global_step_{step - 1}")
            )
            load(self.allocation, folder)
        self._resumed = True


class CheckpointCallback(BaseCallback):
    """Saves what the method's allocator has learned into each of verl's checkpoints."""

    def on_save(self, trainer, global_step, checkpoint_dir, **kwargs):
        """Called by the trainer after it has saved."""
        save(trainer.replay_buffer.allocation, checkpoint_dir)


def save(allocation, folder):
    """Writes an allocation's state: JSON and, where it has arrays, safetensors."""
    tensors, folder = {}, Path(folder)
    state = split_arrays("state", allocation.state_dict(), tensors)
    if tensors:
        save_file(tensors, folder / ARRAYS)
    (folder / MEMORY).write_text(json.dumps(state))


def load(allocation, folder):
    """Reads what `save` wrote; ValueError where there is none, or another allocator's."""
    folder = Path(folder)
    if not (folder / MEMORY).exists():
        raise ValueError(
            f"{folder}: no {MEMORY}, so the allocator's memory is lost; save with "
            "trainer.checkpoint_callback_class=workbench.verl.v1.CheckpointCallback"
        )
    tensors = load_file(folder / ARRAYS) if (folder / ARRAYS).exists() else {}
    allocation.load_state_dict(join_arrays(json.loads((folder / MEMORY).read_text()), tensors))


def _ids(prompts):
    return verl.problem_ids(tensordicts.get(prompts, "raw_prompt"))


def _group(key):
    return key.split("_")[0]


def _scored(ids, uids, rewards, correct, stage, step):
    return Rollouts(
        ids,
        reward=rewards,
        correct=correct,
        stage=np.full(len(ids), stage),
        round=np.full(len(ids), step),
        columns={"group": np.array(uids, dtype=str)},
    )
