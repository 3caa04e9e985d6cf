"""The methods in TRL's `GRPOTrainer`, and with it accelerate and DeepSpeed: several GPUs, and everything that TRL logs.

    from trl import GRPOConfig
    from workbench import methods
    from workbench.trl import trainer as trl

    method = methods.pods(n=64, m=16)
    args = GRPOConfig("out", num_generations=16, per_device_train_batch_size=16, **trl.arguments(method))
    trl.GRPOTrainer("Qwen/Qwen2.5-3B-Instruct", reward_func, args=args, train_dataset=dataset, method=method).train()

A round is one of TRL's generations. The method decides how many rollouts of which prompt, which old ones join, which are
trained on, and their advantages; the model, sampling, optimizer and loss are TRL's, configured by `GRPOConfig`, so that
`method.objective` acts through `arguments(method)` alone. Every process decides from the same gathered table.
"""

import copy
import hashlib
import inspect
import json
import os

import numpy as np
import torch

try:
    import trl
except ImportError:
    raise ImportError(
        "workbench.trl.trainer needs a package: pip install 'trl>=1.14.2,!=1.15.0'"
    ) from None
from accelerate.utils import gather_object
from safetensors import safe_open
from safetensors.torch import save_file
from trl.trainer.utils import pad, use_adapter

from workbench import rewards
from workbench.grpo import StepStats, marked
from workbench.objectives import surrogate
from workbench.policies import Sampling
from workbench.problems import Problem
from workbench.records.checkpoints import join_arrays, split_arrays
from workbench.records.round_stats import round_row
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import collect, join_and_select
from workbench.trl import setup as trl_setup
from workbench.trl.setup import arguments, problem_id, solved
from workbench.utils.descriptions import describe, differences
from workbench.utils.seeding import generator

__all__ = ["GRPOTrainer", "arguments", "problem_id", "solved"]

SLOTS = ("allocator", "reuse", "selector")
STATE = "workbench.safetensors"  # in TRL's checkpoint directory
LOGGED = ("problems", "rollouts", "selected", "trained", "reward", "correct", "effective_gradient_ratio", "all_positive",
          "all_negative", "unsolved", "tokens_sampled", "length", "truncated")  # fmt: skip
PER_TOKEN = ("sampling_per_token_logps", "importance_sampling_ratio")  # what vLLM adds to a rollout
CARRIED = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch",
           "old_per_token_logps", "ref_per_token_logps", *PER_TOKEN}  # fmt: skip


class GRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer with a method of this package. Its other arguments are TRL's; without a method it is TRL's trainer.

    method: a `Method`, copied. A round's problems are the generation_batch_size / num_generations prompts of TRL's
    sampler, whatever the method then asks for; num_generations means nothing else, and the number of rollouts that a
    method trains on for each problem keeps TRL's batch sizes. More problems (dynamic sampling) come from the training
    set in an order of their own. A prompt that occurs twice in a round is two problems. The reward is the weighted sum
    of TRL's reward functions, with the parts of `method.reward` on top; rollouts that no function scored are left out.
    correct: function of the rewards (R, F), NaN for None, to (R,) bool; what allocators and reuse go by.
    rows_at_once: rollouts that a process samples in one call at most (memory); None for all of a request.

    A round's rows vary in number. They are dealt to the processes and to steps_per_generation micro-batches of equal
    size, filled up with fully masked rows, and losses that divide by the number of rows are scaled so that only real
    ones count; TRL's entropy bonus and router loss are scaled along. With bnpo, a mean over each micro-batch, the split
    itself matters, as it does in TRL. Rows of advantage zero count in the averages but are not computed, unless a
    penalty or the kind of loss depends on them; a round with nothing to train on makes a step of zero gradient.
    Metrics are logged beside TRL's, with the prefix `workbench/`; those of the slots one round late. TRL's own are over
    all that was sampled (completions, rewards), a mean over its calls, and over the rows computed (loss).

    ValueError, before any model is loaded, for what TRL or the combination cannot carry.
    """

    def __init__(self, *args, method=None, correct=solved, rows_at_once=None, **options):
        if method is not None:
            trl_setup.check(
                method,
                rows_at_once,
                inspect.signature(trl.GRPOTrainer).bind(*args, **options).arguments,
            )
        self.method = None  # TRL's constructor is TRL's alone
        super().__init__(*args, **options)
        self.method, self.correct, self.rows_at_once = copy.deepcopy(method), correct, rows_at_once
        self._round = self._extra = 0  # rounds begun, extra problems looked at
        self._latest = self._order = (
            None  # the round whose updates go on, the order of extra problems
        )
        self._drawing = False
        if method is not None:
            self._agree("method", json.dumps(describe(method)))

    # a round

    def _generate_and_score_completions(self, inputs):
        """TRL's inputs of this process, in training those of a whole round; its share of the rows to train on."""
        if self.method is None or not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self._latest is not None:
            self._feedback(self.method)
            self._log(
                row
                for slot in _slots(self.method)
                if hasattr(slot, "metrics")
                for row in slot.metrics().items()
            )
        prompts = gather_object(inputs)[:: self.num_generations]
        self._round, self._prompts, self._logged_rows, self._sampled = self._round + 1, {}, [], 0
        context = Context(self.args.seed, self._round, self._epoch(len(prompts)), _Scorer(self))
        rollouts, candidates = collect(
            self.method.allocator, self._named(prompts), context, self._sample, self._more
        )
        if not (scored := np.isfinite(rollouts.reward)).any():
            raise ValueError(
                f"reward_funcs: none of them scored any of the {len(rollouts)} rollouts of a round"
            )
        candidates = candidates[scored[candidates]]
        rollouts, chosen, advantages, seen = join_and_select(
            self.method, rollouts, candidates, context, self.max_completion_length
        )
        self._agree("the rollouts to train on", chosen, advantages)
        rollouts = rollouts.assign(**seen)
        self._latest = rollouts, chosen, advantages, context
        self._measured = np.full(
            (3, len(rollouts)), np.nan
        )  # clip ratio, entropy, drift of rows this process computed
        self._log_round(*self._latest)
        return self._batch(rollouts, chosen, advantages)

    def _named(self, prompts):
        """The prompts as problems; remembers the rows of the data set that they are."""
        problems = []
        for row in prompts:
            name = key = problem_id(row["prompt"])
            while name in self._prompts:
                name = f"{key}#{int(name.partition('#')[2] or 1) + 1}"
            self._prompts[name] = row
            problems.append(Problem(name, row["prompt"], ""))
        return problems

    def _more(self, n, problems):
        """n other problems of the training set, fewer when as many looks as it has rows find no more."""
        trl_setup.check_indexable(self.train_dataset)
        size, found = len(self.train_dataset), []
        for _ in range(size):
            epoch, place = divmod(self._extra, size)
            if place == 0 or self._order is None:
                self._order = generator(self.args.seed, "more", epoch).permutation(size)
            row, self._extra = self.train_dataset[int(self._order[place])], self._extra + 1
            if problem_id(row["prompt"]) not in self._prompts:
                found += self._named([row])
            if len(found) == n:
                break
        return found

    def _sample(self, problems, counts, before, stage):
        """Scored rollouts of all processes, `counts` (P,) of the problems; every process samples an equal share."""
        names = [problem.id for problem in problems]
        self._agree("the counts of rollouts", *names, counts)
        wanted = [name for name, count in zip(names, counts) for _ in range(count)]
        if not wanted:
            raise ValueError(
                f"allocator: {self.method.allocator!r} asked for a stage of no rollouts"
            )
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        share = -(-len(wanted) // world)
        mine = (wanted + wanted[-1:] * (share * world - len(wanted)))[
            rank * share : (rank + 1) * share
        ]
        size = self.rows_at_once or share
        table = Rollouts.concat(
            [self._scored(mine[i : i + size], stage) for i in range(0, share, size)]
        )
        rows = [
            r * share + i
            for start in range(0, share, size)
            for r in range(world)
            for i in range(start, min(start + size, share))
        ]  # in the order of TRL's log of completions
        self._logged_rows += [self._sampled + row if row < len(wanted) else -1 for row in rows]
        self._sampled += len(wanted)
        table = Rollouts.concat(gather_object([table])).take(np.arange(len(wanted)))
        draw = (
            np.arange(len(wanted))
            - np.repeat(np.cumsum(counts) - counts, counts)
            + np.repeat(before, counts)
        )
        sampling = Sampling(self.temperature, max_new_tokens=self.max_completion_length)
        return rewards.total(table.assign(draw=draw), self.method.reward, sampling)

    def _scored(self, names, stage):
        """TRL's completions and rewards, one rollout for each of the names, as a table."""
        rows, keys = (
            [self._prompts[name] for name in names],
            next(iter(self._prompts.values())).keys(),
        )
        generations, self.num_generations, self._drawing = self.num_generations, 1, True
        try:
            out = super()._generate_and_score_completions(
                [{key: row[key] for key in keys} for row in rows]
            )
        finally:
            self.num_generations, self._drawing = generations, False
        if odd := sorted(out.keys() - CARRIED):
            raise ValueError(
                f"train_dataset: it makes {', '.join(odd)}, but a method carries text alone; use method=None"
            )
        self._metrics["train"].pop(
            "frac_reward_zero_std", None
        )  # of groups of one; `workbench/all_...` say it
        scores, responses = self._answers
        ends, old = {*self.eos_token_ids, self._pad_id}, out.get("old_per_token_logps")
        prompts = [
            ids[mask.bool()].cpu().numpy()
            for ids, mask in zip(out["prompt_ids"], out["prompt_mask"])
        ]
        table = Rollouts(
            problem=names, prompt=Ragged.of(prompts, np.int32), response=Ragged.of(responses, np.int32),
            text=self.processing_class.batch_decode(responses, skip_special_tokens=True),
            truncated=[ids[-1] not in ends for ids in responses],
            reward=trl_setup.weighted(scores, self.reward_weights.cpu().numpy()), correct=self.correct(scores),
            stage=np.full(len(names), stage), round=np.full(len(names), self._round),
            columns={"gradient": np.ones(len(names), bool), "uses": np.zeros(len(names), dtype=np.int64)},
        )  # fmt: skip
        if old is not None:
            table = table.assign(
                old_logprobs=Ragged.of_padded(old.float().cpu().numpy(), table.lengths)
            )
        if trl_setup.reads_entropy(self.method) or trl_setup.replays(self.method):
            table = self._with_scores(table)
        return table.assign(
            **{name: _objects(out[name], table.lengths) for name in PER_TOKEN if name in out}
        )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        found = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._drawing:
            mine = slice(
                self.accelerator.process_index * len(prompts),
                (self.accelerator.process_index + 1) * len(prompts),
            )
            self._answers = found[mine].float().cpu().numpy(), completion_ids_list
        return found

    # the rows to train on

    def _batch(self, rollouts, chosen, advantages):
        """This process's share of the chosen rows (K,) as TRL's tensors, filled up with masked rows."""
        config, world, rank = (
            self.args,
            self.accelerator.num_processes,
            self.accelerator.process_index,
        )
        everything = (
            self.beta != 0
            or config.entropy_coef != 0
            or config.use_adaptive_entropy
            or self.aux_loss_enabled
            or config.top_entropy_quantile < 1
            or self.loss_type == "bnpo"
        )
        active = np.flatnonzero(rollouts["gradient"][chosen] & (everything | (advantages != 0)))
        parts = world * config.steps_per_generation
        total = max(1, -(-len(active) // parts)) * parts
        fresh = np.flatnonzero(rollouts.round == self._round)
        filler = fresh[np.argmin((rollouts.prompt.lengths + rollouts.lengths)[fresh])]
        row, advantage = np.full(total, -1), np.zeros(total)
        row[: len(active)], advantage[: len(active)] = chosen[active], advantages[active]
        row, advantage = row[rank::world], advantage[rank::world]
        table, hidden = (
            rollouts.take(np.where(row < 0, filler, row)),
            rollouts.truncated & self.mask_truncated_completions,
        )
        batch = self._tensors(table, (row >= 0) & ~hidden[row])
        scale = (
            total / len(chosen) if len(chosen) and self.loss_type in trl_setup.ROW_MEANS else 1.0
        )
        extra = {
            "advantages": advantage.astype(np.float32),
            "workbench_row": row,
            "workbench_scale": np.float32(scale),
            "num_items_in_batch": np.int64((rollouts.lengths * ~hidden)[chosen].sum()),
        }
        batch |= {
            name: torch.as_tensor(value, device=self.accelerator.device)
            for name, value in extra.items()
        }
        self._log({"computed": len(active)}.items())
        return batch | self._logprobs_for(batch, table)

    def _tensors(self, table, shown):
        """Tokens and masks of a table, padded as TRL pads them; responses with shown (R,) False are masked."""
        prompts, responses = (
            [torch.as_tensor(rows[i]).long() for i in range(len(table))]
            for rows in (table.prompt, table.response)
        )
        masks = [torch.full_like(ids, int(show)) for ids, show in zip(responses, shown)]
        return {
            "prompt_ids": self._padded(prompts, self._pad_id, "left"),
            "prompt_mask": self._padded([torch.ones_like(ids) for ids in prompts], 0, "left"),
            "completion_ids": self._padded(responses, self._pad_id),
            "completion_mask": self._padded(masks, 0),
        }

    def _padded(self, rows, fill, side="right"):
        rows = pad(
            rows, padding_value=fill, padding_side=side, pad_to_multiple_of=self.pad_to_multiple_of
        )
        return rows.to(self.accelerator.device)

    @property
    def _pad_id(self):
        return getattr(self.processing_class, "tokenizer", self.processing_class).pad_token_id

    def _logprobs_for(self, batch, table):
        """What TRL's loss needs of the policy that sampled, of the reference and of vLLM."""
        found, config = {}, self.args
        if self._corrected or trl_setup.replays(self.method):
            found["old_per_token_logps"] = self._padded(
                [torch.as_tensor(table.old_logprobs[i]) for i in range(len(table))], 0.0
            )
        elif config.gradient_accumulation_steps % (
            config.steps_per_generation * self.num_iterations
        ):
            found["old_per_token_logps"] = self._score(self.model, batch)[0]
        if self.beta != 0 and self.ref_model is not None:
            found["ref_per_token_logps"] = self._score(self.ref_model, batch)[0]
        elif self.beta != 0:
            model = self.accelerator.unwrap_model(self.model)
            with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
                found["ref_per_token_logps"] = self._score(self.model, batch)[0]
        for name in (name for name in PER_TOKEN if name in table.columns):
            values = [torch.as_tensor(row) for row in table[name]]
            whole = (
                name == "importance_sampling_ratio"
                and self.vllm_importance_sampling_mode.startswith("sequence")
            )
            found[name] = (
                torch.stack(values).to(self.accelerator.device)
                if whole
                else self._padded(values, 0.0)
            )
        return found

    @property
    def _corrected(self):
        return self.use_vllm and self.vllm_importance_sampling_correction

    def _score(self, model, batch, entropy=False):
        """Log-probabilities of the response tokens and, if asked for, entropies, (R, T) both, without gradient."""
        ids, mask = (
            torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1)
            for name in ("ids", "mask")
        )
        with torch.no_grad():
            return super()._get_per_token_logps_and_entropies(
                model,
                ids,
                mask,
                batch["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=entropy,
            )[:2]

    def _with_scores(self, table):
        logprobs, entropy = self._score(
            self.model, self._tensors(table, np.ones(len(table))), entropy=True
        )
        entropy = Ragged.of_padded(entropy.double().cpu().numpy(), table.lengths)
        return table.assign(
            old_logprobs=Ragged.of_padded(logprobs.float().cpu().numpy(), table.lengths),
            entropy=np.add.reduceat(entropy.values, entropy.offsets[:-1]) / table.lengths,
        )

    # the update

    def _get_per_token_logps_and_entropies(self, model, *args, **options):
        if self._drawing and not self._corrected:
            return (
                None,
                None,
                None,
            )  # most of what is sampled may not be trained on; `_logprobs_for` computes the rest
        found = super()._get_per_token_logps_and_entropies(model, *args, **options)
        self._computed = [None if values is None else values.detach() for values in found[:2]]
        return found

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if "workbench_row" not in inputs:
            return loss
        self._measure(
            inputs, *(values.float() for values in self._computed), inputs["completion_mask"].bool()
        )
        return loss * inputs["workbench_scale"]

    def _measure(self, inputs, logprobs, entropy, mask):
        """Keeps clip ratio, entropy and drift of the rows just computed, for the slots."""
        old, clipped = inputs.get("old_per_token_logps", logprobs), torch.zeros_like(mask)
        if self.loss_type in trl_setup.CLIPPED:
            _, clipped = surrogate(
                logprobs,
                old,
                inputs["advantages"],
                mask,
                clip=(self.epsilon_low, self.epsilon_high),
                ratio=self.importance_sampling_level,
            )
        columns = clipped.float(), entropy, (logprobs - old).abs()
        means = torch.stack(
            [torch.where(mask, column, 0.0).sum(1) / mask.sum(1).clamp(min=1) for column in columns]
        )
        rows = inputs["workbench_row"].cpu().numpy()
        self._measured[:, rows[rows >= 0]] = means.cpu().numpy()[:, rows >= 0]

    def _feedback(self, method):
        """The latest round's table, with what its updates measured so far, to the slots of `method`."""
        rollouts, chosen, advantages, context = self._latest
        measured = np.full_like(self._measured, np.nan)
        for part in gather_object([self._measured]):
            measured = np.where(np.isnan(measured), part, measured)
        stats = StepStats(np.nan, np.nan, np.nan, 0, 0, *measured[:, chosen])
        table = marked(
            rollouts, chosen, advantages, [(np.arange(len(chosen)), stats)], context.round
        )
        for slot in _slots(method):
            if hasattr(slot, "feedback"):
                slot.feedback(table, context)

    # what is logged and kept

    def _log(self, items):
        for name, value in items:
            self._metrics["train"][f"workbench/{name}"].append(float(value))

    def _log_round(self, rollouts, chosen, advantages, context):
        table = marked(rollouts, chosen, advantages, [], context.round)
        row = round_row(context.round, table.take(np.isfinite(table.reward)), [], 0, 0)
        self._log((name, row[name]) for name in LOGGED)
        if self.log_completions:
            shown = np.append(table["advantage"], np.nan)[self._logged_rows].tolist()
            log = self._logs["advantages"]
            for _ in range(min(len(log), len(shown))):
                log.pop()
            log.extend(shown)

    def _epoch(self, problems):
        """Passes of TRL's sampler over the training set so far; a stream has one."""
        size = len(self.train_dataset) if hasattr(self.train_dataset, "__len__") else 0
        return (self._round - 1) // (size // problems) if size >= problems else 0

    def _agree(self, what, *values):
        """ValueError, in every process, where processes are about to do different things."""
        if self.accelerator.num_processes > 1:
            text = "".join(
                value.tobytes().hex() if isinstance(value, np.ndarray) else value
                for value in values
            )
            if len(set(gather_object([hashlib.sha256(text.encode()).hexdigest()]))) > 1:
                raise ValueError(
                    f"{what}: the processes disagree; a slot may depend on the round's table and on "
                    "context.rng alone, and every process needs the same method and seed"
                )

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.method is None:
            return
        method, tensors = (
            copy.deepcopy(self.method),
            {},
        )  # saving leaves no trace in the run, even amid a round's updates
        if self._latest is not None:
            self._feedback(method)
        state = {
            "round": self._round,
            "extra": self._extra,
            "method": describe(self.method),
            "slots": {},
        }
        for name in SLOTS:
            if hasattr(slot := getattr(method, name), "state_dict"):
                state["slots"][name] = split_arrays(f"slots.{name}", slot.state_dict(), tensors)
        if self.args.should_save:
            folder = os.path.join(
                self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}"
            )
            save_file(tensors, os.path.join(folder, STATE), metadata={"state": json.dumps(state)})

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None:
            self._restore(os.path.join(checkpoint, STATE))
        super()._load_optimizer_and_scheduler(checkpoint)

    def _restore(self, path):
        if not os.path.exists(path):
            if self.method is not None:
                raise ValueError(
                    f"resume_from_checkpoint: {path} is missing, so this was made without a method; use method=None"
                )
            return
        with safe_open(path, framework="pt") as file:
            tensors, state = (
                {name: file.get_tensor(name) for name in file.keys()},
                json.loads(file.metadata()["state"]),
            )
        odd = differences(
            None if self.method is None else json.loads(json.dumps(describe(self.method))),
            state["method"],
        )
        if odd:
            raise ValueError(
                f"resume_from_checkpoint: {path} is of another method (ours, theirs): {'; '.join(odd[:3])}"
            )
        for name, value in state["slots"].items():
            getattr(self.method, name).load_state_dict(join_arrays(value, tensors))
        self._round, self._extra, self._order, self._latest = (
            state["round"],
            state["extra"],
            None,
            None,
        )


class _Scorer:
    """The trainer's model as a slot knows a policy."""

    def __init__(self, trainer):
        self.trainer = trainer

    def logprobs(self, rollouts):
        """Log-probabilities of the responses under the current weights, (R, T)."""
        return self.trainer._score(
            self.trainer.model, self.trainer._tensors(rollouts, np.ones(len(rollouts)))
        )[0].float()


def _slots(method):
    return [getattr(method, name) for name in SLOTS]


def _objects(values, lengths):
    """Rows of different lengths as a column, (R,) object."""
    column = np.empty(len(lengths), dtype=object)
    for i, row in enumerate(values.float().cpu().numpy()):
        column[i] = row[: lengths[i]]
    return column
