"""The methods in TRL's `GRPOTrainer`, and with it accelerate and DeepSpeed: several GPUs, and
everything that TRL logs.

    from trl import GRPOConfig
    from workbench import methods
    from workbench.trl import GRPOTrainer

    trainer = GRPOTrainer(
        "Qwen/Qwen2.5-3B-Instruct",
        accuracy,
        args=GRPOConfig("out", per_device_train_batch_size=16),
        train_dataset=dataset,
        method=methods.pods(n=64, m=16),
    )
    trainer.train()

A round is one of TRL's generations. The method decides how many rollouts of which prompt, which old
ones join, which are trained on, and their advantages. The model, sampling, optimizer and loss are
TRL's. Every process decides from the same gathered table.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from datasets import Dataset

from workbench.grpo import StepStats, marked
from workbench.methods import Method
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import Round, play
from workbench.trl import setup, state
from workbench.trl.batches import MicroBatches, Padding
from workbench.trl.losses import LossMetrics, row_statistics, with_bonus
from workbench.trl.report import EmptyRounds, round_metrics
from workbench.trl.sampling import RoundSampler, TrainingSet
from workbench.trl.verdict import Verdict, check_correct, reads_verdict
from workbench.utils.descriptions import describe


@dataclass(frozen=True)
class Drawn:
    """One rollout of this process for each row it was given.

    Attributes
    ----------
    output : dict
        What TRL made of them for its loss.
    scores : (R, F)
        NaN where a reward function gave None.
    responses : R lists of token ids
    texts : R texts
    """

    output: dict[str, Any]
    scores: np.ndarray
    responses: Sequence[Sequence[int]]
    texts: Sequence[str]


@dataclass
class RoundAtWork:
    """The round whose rows are being trained on.

    Attributes
    ----------
    outcome : Round
    context : Context
    measured : (3, R) float64
        Clip ratio, entropy and difference of log-probabilities of the rows of the table that this
        process has computed, NaN elsewhere.
    """

    outcome: Round
    context: Context
    measured: np.ndarray


class GRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer with a method of this package. Without a method it is TRL's trainer.

    Parameters
    ----------
    method : Method, optional
        It is cloned, so that what it learns stays in this trainer. Its objective is applied to
        `args` where `args` has TRL's defaults; other values are refused.
    correct : str or function, optional
        Which rollouts are correct: the name of a reward function, which says so by giving more than
        0; or a function from the rewards (R, F), one column for each reward function and NaN for
        None, to (R,) bool. Without it, the only reward function of a run judges, as long as it
        gives nothing but 0 and 1. Allocators, replay, rejection and success rates go by it.
    rows_at_once : int, optional
        Rollouts that a process samples in one call at most, which bounds memory; None for all of a
        request.
    objective_from : {"method", "args"}
        "args" trains with the objective of `args` whatever the method says, for losses of TRL that
        methods do not know, such as "cispo".
    *args, **options
        Those of `trl.GRPOTrainer`.

    Raises
    ------
    ValueError
        For what TRL's trainer, or the combination of its settings and the method, cannot carry,
        before any model is loaded.

    Notes
    -----
    The problems of a round are the generation_batch_size / num_generations prompts of TRL's
    sampler, whatever the method then asks for. num_generations is the number of rollouts of a
    problem that are trained on, where that number is fixed, so that TRL's batch sizes count the
    rollouts trained on. A curriculum other than `ShuffledEpochs` chooses the problems itself, from
    train_dataset. A prompt that occurs twice in a round is two problems.

    The reward is the weighted sum of TRL's reward functions, with the parts of `method.reward` on
    top. Rollouts that no function scored are left out of the round.

    Rows of advantage zero count in the averages of the loss but are not computed, unless a penalty
    or the kind of loss depends on them. With loss_type="bnpo", a mean over each micro-batch, the
    split into micro-batches itself matters, as it does in TRL.

    Metrics of the method have the prefix `workbench/`. TRL's own are over all that was sampled
    (completions and rewards), and over the rows computed (loss, entropy and clip ratios).
    """

    # What TRL's own annotations leave open.
    args: Any
    num_generations: Any
    max_completion_length: Any
    model: Any
    processing_class: Any
    _buffered_inputs: Any
    _logs: Any

    def __init__(
        self,
        *args: Any,
        method: Method | None = None,
        correct: Any = None,
        rows_at_once: int | None = None,
        objective_from: str = "method",
        **options: Any,
    ) -> None:
        self.method: Any = None  # TRL's constructor is TRL's alone
        if method is None:
            setup.check_without_method(correct, rows_at_once, objective_from)
            super().__init__(*args, **options)
            return

        # The arguments by name, however they were passed, so that `args` can be replaced.
        bound = inspect.signature(trl.GRPOTrainer.__init__).bind(self, *args, **options)
        bound.arguments["args"] = setup.configured(
            method, bound.arguments, correct, rows_at_once, objective_from
        )
        super().__init__(*bound.args[1:], **bound.kwargs)

        # Once more, since the reward of an environment has its name only now.
        check_correct(correct, self.reward_func_names, method)
        self.method = method.clone()
        self.needs = {need for value in method.learning().values() for need in value.needs}
        self.verdict = Verdict(correct, self.reward_func_names, reads_verdict(method))
        self.rows_at_once = rows_at_once
        self.first_round = 1  # of this process
        self.round = 0  # rounds begun
        self._empty_rounds = EmptyRounds()
        self._at_work: RoundAtWork | None = None
        self._training_set: TrainingSet | None = None
        objective = method.objective if objective_from == "method" else None
        self._micro_batches = MicroBatches(self, objective)
        self._loss_metrics = LossMetrics(self.importance_sampling_level == "sequence")
        # What TRL has computed in the call at work, kept for us.
        self._drawing = False
        self._answers: tuple = ()
        self._computed: tuple = ()
        self.agree("method", json.dumps(describe(method)))

    @property
    def padding(self) -> Padding:
        """How rows become TRL's tensors."""
        return Padding(
            self._tokenizer.pad_token_id, self.pad_to_multiple_of, self.accelerator.device
        )

    @property
    def has_penalty(self) -> bool:
        """Whether the loss has a KL penalty or an entropy bonus."""
        return self.beta != 0 or self._entropy_bonus_enabled

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for the difference between vLLM and the model."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    # A round: what is sampled, and what of it is trained on

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The next micro-batch; a new round where the last one's are used up."""
        # Without a method, and in evaluation, rollouts are TRL's own affair.
        if self.method is None or not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        # TRL's own rhythm: a generation serves num_iterations passes over its micro-steps. After a
        # resume amid a generation nothing is buffered.
        starts_round = self._step % (steps * self.num_iterations) == 0
        if starts_round or self._buffered_inputs is None:
            self._buffered_inputs = self._play_round(generation_batch)
        return self._buffered_inputs[self._step % steps]

    def _play_round(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sample a round, and let the method choose; this process's micro-batches."""
        self.round += 1
        size = self.args.generation_batch_size // self.num_generations
        context = Context(
            seed=self.args.seed,
            round=self.round,
            epoch=self._epoch(size),
            policy=_Policy(self),
            max_new_tokens=self.max_completion_length,
            temperature=self.temperature,
        )
        sampler = RoundSampler(self, context)
        if setup.chooses_problems(self.method):
            problems = sampler.find_more(size, [])
        else:
            # TRL's sampler repeats each prompt num_generations times in a row, so every such step
            # is a new one.
            problems = sampler.named(gather_object(inputs)[:: self.num_generations])
        outcome = play(self.method, problems, context, sampler.sample, sampler.find_more)
        # Processes that trained on different rows would drift apart without any error.
        self.agree("the rollouts to train on", outcome.rows, *_arrays(outcome.advantages))
        self._at_work = RoundAtWork(
            outcome, context, measured=np.full((3, len(outcome.rollouts)), np.nan)
        )
        self._report(self._marked(steps=[]), sampler)
        # TRL shuffles its generation batch here. Drawing as it does keeps what is sampled next the
        # same as without a method, where a method samples as much.
        torch.randperm(self.args.per_device_train_batch_size * self.args.steps_per_generation)
        return self._micro_batches.make(outcome, context, sampler.filler)

    def _epoch(self, problems: int) -> int:
        """Passes over the training set so far; 0 for a stream."""
        if setup.chooses_problems(self.method):
            return self.method.curriculum.epoch
        if not isinstance(self.train_dataset, Dataset):
            return 0
        rounds_an_epoch = len(self.train_dataset) // problems
        return (self.round - 1) // rounds_an_epoch if rounds_an_epoch else 0

    def training_set(self) -> TrainingSet:
        """The training set as a pool of problems, made when it is first needed."""
        if self._training_set is None:
            self._training_set = TrainingSet(self.train_dataset)
        return self._training_set

    def draw(self, rows: list[dict[str, Any]]) -> Drawn:
        """Let TRL generate and score one rollout for each of these rows of the data set."""
        # TRL groups rows by this number. With 1 any number of rollouts can be asked for, and its
        # own advantages, which are not used, do not matter.
        generations = self.num_generations
        self.num_generations = 1
        self._drawing = True
        try:
            output = super()._generate_and_score_completions(rows)
        finally:
            self.num_generations = generations
            self._drawing = False
        # Every rollout was a group of its own to TRL. `workbench/all_positive` and so on tell it.
        self._metrics["train"].pop("frac_reward_zero_std", None)
        return Drawn(output, *self._answers)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        """TRL's rewards (R, F) of all processes; those of this process are kept."""
        scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.method is not None and self._drawing:
            # TRL has gathered the rewards of all processes. Each has sent equally many rows.
            start = self.accelerator.process_index * len(prompts)
            own = scores[start : start + len(prompts)].float().cpu().numpy()
            texts = completions
            if not isinstance(completions[0], str):
                texts = self.processing_class.batch_decode(
                    completion_ids_list, skip_special_tokens=True
                )
            self._answers = own, completion_ids_list, texts
        return scores

    def score_tokens(
        self, model: Any, batch: dict[str, Any], entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the response tokens and, if asked for, entropies, (R, T) both."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            logprobs, entropies, _ = super()._get_per_token_logps_and_entropies(
                model,
                ids,
                mask,
                batch["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=entropy,
            )
        return logprobs, entropies

    # The update

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        if self.method is None:
            return super()._get_per_token_logps_and_entropies(model, *args, **options)
        if self._drawing and not self.corrects_sampler:
            # Most of what is sampled may not be trained on; `MicroBatches` computes the rest.
            return None, None, None
        results = super()._get_per_token_logps_and_entropies(model, *args, **options)
        self._computed = results[:2]
        return results

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        part = inputs.get("workbench")
        if part is None:
            return super()._compute_loss(model, inputs)
        coefficient = self._entropy_coefficient()
        metrics = self._metrics["train"]
        # TRL appends its metrics to lists, so their lengths tell what this micro-batch added.
        before = {name: len(values) for name, values in metrics.items()}
        loss = super()._compute_loss(model, inputs)
        self._loss_metrics.take(metrics, before, part)

        logprobs, entropy = self._computed
        self._computed = ()
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        # A filler has no row of the table that could be measured.
        if "update_statistics" in self.needs and len(part.rows):
            assert self._at_work is not None
            self._at_work.measured[:, part.rows] = row_statistics(
                inputs,
                logprobs.detach().float(),
                entropy.detach().float(),
                mask.bool(),
                loss_type=self.loss_type,
                clip=(self.epsilon_low, self.epsilon_high),
                importance_sampling=self.importance_sampling_level,
            )
        # Without an entropy bonus the whole loss of the micro-batch has one scale.
        if not coefficient:
            return loss * part.scale
        bonus = coefficient * (entropy * mask).sum()
        accumulated = self.current_gradient_accumulation_steps
        # As in TRL's token mean: an optimizer step is a share of a round, or several rounds.
        of_step = accumulated / self.args.steps_per_generation / self.accelerator.num_processes
        tokens_of_step = inputs["num_items_in_batch"].clamp(min=1) * of_step
        return with_bonus(loss, bonus, mask.sum(), tokens_of_step, accumulated, part.scale)

    def _entropy_coefficient(self) -> float:
        """The weight of TRL's entropy bonus in the step at work."""
        if self.use_adaptive_entropy and self._last_world_entropy > self.args.entropy_target:
            return 0.0
        return self.entropy_coef

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """TRL's step on a micro-batch; after the last one of a round the slots learn from it."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.method is None:
            return loss
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            # The last micro-step of the last pass, so the updates of the round are complete.
            self._learn(self.method)
            self.log_metrics(self.method.metrics())
            self._at_work = None
        return loss

    def _learn(self, method: Method) -> None:
        """Hand the round at work, with what its updates measured so far, to the slots."""
        assert self._at_work is not None
        steps = []
        if "update_statistics" in self.needs:
            measured = self._at_work.measured
            # Each row was computed by one process, which alone has numbers for it.
            for part in gather_object([measured]):
                measured = np.where(np.isnan(measured), part, measured)
            rows = self._at_work.outcome.rows
            nothing = float("nan")
            stats = StepStats(nothing, nothing, nothing, 0, 0, *measured[:, rows])
            steps = [(np.arange(len(rows)), stats)]
        method.feedback(self._marked(steps), self._at_work.context)

    def _marked(self, steps: list[tuple[np.ndarray, StepStats]]) -> Rollouts:
        """The table of the round at work, with what became of each rollout."""
        assert self._at_work is not None
        outcome = self._at_work.outcome
        return marked(
            outcome.rollouts,
            outcome.rows,
            outcome.advantages,
            steps,
            self._at_work.context.round,
            outcome.weights,
        )

    # What is logged

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log. Metrics of the loss are means over the tokens that were trained on."""
        if self.method is not None and self.model.training:
            metrics = self._metrics["train"]
            # One number each, which TRL averages over itself.
            for name, mean in self._loss_metrics.means().items():
                metrics[name].append(mean)
            # TRL would log an empty list as None.
            for name in [name for name, values in metrics.items() if not values]:
                del metrics[name]
        super().log(logs, start_time)

    def log_metrics(self, numbers: dict[str, float]) -> None:
        """Log numbers with the prefix `workbench/`; those that are not finite are left out."""
        for name, value in numbers.items():
            if np.isfinite(value):
                self._metrics["train"][f"workbench/{name}"].append(float(value))

    def _report(self, rollouts: Rollouts, sampler: RoundSampler) -> None:
        """Log what was sampled and selected, and warn where nothing can be learnt from it."""
        known = self.verdict.known
        unscored = sampler.sampled - sum(map(len, sampler.scored))
        self.log_metrics(round_metrics(self.round, rollouts, sampler.sampled, unscored, known))
        self._empty_rounds.check(self.round, rollouts, known)
        if self.log_completions:
            # TRL has logged advantages of its own.
            log = self._logs["advantages"]
            shown = sampler.logged_advantages(rollouts["advantage"])[-len(log) :]
            # TRL's log is a queue of limited length, so only its newest entries are replaced.
            for _ in shown:
                log.pop()
            log.extend(shown)

    def agree(self, what: str, *values: str | np.ndarray) -> None:
        """Raise ValueError, in every process, where processes are about to do different things."""
        if self.accelerator.num_processes == 1:
            return
        # A digest of fixed size is exchanged in place of whole arrays.
        digest = hashlib.sha256()
        for value in values:
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else value.encode())
        if len(set(gather_object([digest.hexdigest()]))) > 1:
            raise ValueError(
                f"{what}: the processes disagree; a slot may depend on the round's table and on "
                "context.rng alone, and every process needs the same method and seed"
            )

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.method is None:
            return
        method = self.method
        if self._at_work is not None:
            # Amid a round's updates a copy learns what they measured so far, since saving must
            # leave no trace in the run. `clone` would forget what the round itself left.
            method = copy.deepcopy(method)
            self._learn(method)
        # Every process has learnt along, since `_learn` gathers. Only one of them writes.
        if self.args.should_save:
            name = f"checkpoint-{self.state.global_step}"
            folder = os.path.join(self._get_output_dir(trial=trial), name)
            empty = self._empty_rounds.in_a_row
            state.save(folder, method, round=self.round, empty_rounds=empty)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            numbers = state.load(checkpoint, self.method)
            if self.method is not None:
                self.round = numbers["round"]
                # The next round is the first one of this process, so a verdict that turns out to be
                # unclear is an error there and not only a warning.
                self.first_round = self.round + 1
                self._empty_rounds.in_a_row = numbers["empty_rounds"]
                self._at_work = None
        super()._load_optimizer_and_scheduler(checkpoint)


class _Policy:
    """The trainer's model as a slot knows a policy."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer

    def logprobs(self, rollouts: Rollouts, temperature: float) -> torch.Tensor:
        """Log-probabilities of the responses under the current weights, (R, T), in nats.

        The temperature is the trainer's, which is what a round's context says as well.
        """
        assert temperature == self.trainer.temperature
        inputs = self.trainer.padding.tokens(rollouts)
        return self.trainer.score_tokens(self.trainer.model, inputs)[0].float()


def _arrays(advantages: np.ndarray | Ragged) -> tuple[np.ndarray, ...]:
    if isinstance(advantages, Ragged):
        return advantages.values, advantages.offsets
    return (advantages,)
