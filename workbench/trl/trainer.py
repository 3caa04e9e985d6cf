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

import copy
import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from workbench import config
from workbench.adapters import FILE, Driver, round_metrics, token_advantages
from workbench.grpo import StepStats
from workbench.methods import Method
from workbench.objectives import Objective, gains, log_ratio_of
from workbench.policies import checks
from workbench.trl import setup
from workbench.trl.batches import BatchingTrainer
from workbench.trl.sampling import RoundSampler
from workbench.trl.table import Verdict
from workbench.utils.descriptions import describe
from workbench.utils.failures import release

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # TRL's losses with a clip range
# Models that count the padding as positions too. TRL fills up prompts on the left.
COUNTING = ("biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "xglm")
ADVICE = "Check the rewards, what counts as correct (correct=), and how hard the problems are."


class GRPOTrainer(BatchingTrainer):
    """TRL's trainer with a method of this package. Without a method it is TRL's trainer.

    Parameters
    ----------
    method : Method or str, optional
        Or the name of one, such as that of an installed package, see `config.method`. It is cloned,
        so that what it learns stays in this trainer. Its objective is applied to `args` where
        `args` has TRL's defaults; other values are refused.
    correct : str, number or function, optional
        Which rollouts are correct: the name of a reward function, which says so by giving more than
        0; the number from which the only reward function says so; or a function from the rewards
        (R, F), one column for each reward function and NaN for None, to (R,) bool. Without it, the
        only reward function of a run judges, as long as it gives nothing but 0 and 1. Allocators,
        replay, rejection and success rates go by it. Dynamic sampling goes by the weighted sum of
        the rewards where nothing says what is correct.
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

    _buffered_inputs: Any
    _logs: Any
    chat_template_kwargs: Any
    _epochs_behind = 0  # when training begins

    def __init__(
        self,
        *args: Any,
        method: Method | str | None = None,
        correct: Any = None,
        rows_at_once: int | None = None,
        objective_from: str = "method",
        **options: Any,
    ) -> None:
        if method is None:
            if correct is not None or rows_at_once is not None or objective_from != "method":
                raise ValueError(
                    "method=None: correct, rows_at_once and objective_from go with a method"
                )
            super().__init__(*args, **options)
            return
        if isinstance(method, str):
            method = config.method(method)

        # The arguments by name, however they were passed, so that `args` can be replaced.
        bound = inspect.signature(trl.GRPOTrainer.__init__).bind(self, *args, **options)
        bound.arguments["args"] = setup.configured(
            method, bound.arguments, correct, rows_at_once, objective_from
        )
        super().__init__(*bound.args[1:], **bound.kwargs)
        for each in filter(None, (self.model, self.ref_model)):
            core = self.accelerator.unwrap_model(each)
            if core.config.model_type in COUNTING:
                core.register_forward_pre_hook(_with_positions, with_kwargs=True)
        # A trainer that goes on on another day asks the same.
        clock = checks.clock_of(self.processing_class)
        self.chat_template_kwargs = {**clock, **self.chat_template_kwargs}

        self.driver = Driver(method.clone(), self.args.seed)
        # The reward of an environment has its name only now.
        self.verdict = Verdict(correct, self.reward_func_names, method.reads_verdict)
        self.rows_at_once = rows_at_once
        # Clip ratio, entropy and difference of log-probabilities, (3, R), of the rows of the round
        # at work that this process has computed, NaN elsewhere.
        self._measured = np.empty((3, 0))
        self.objective = method.objective if objective_from == "method" else Objective()
        self.agree("method", json.dumps(describe(method)).encode())

    @property
    def method(self) -> Method | None:
        """The method with what it has learnt; None without one."""
        return None if self.driver is None else self.driver.method

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """Train as TRL does, from the beginning of a round whatever an earlier call has left.

        Parameters
        ----------
        resume_from_checkpoint : path or bool, optional
            True for the last complete checkpoint in `args.output_dir`. After an interrupt or an
            error the same trainer, or a new one, goes on from there as if nothing had happened.
            Without it training begins anew, with the weights as the interrupt has left them.
        *args, **options
            Those of TRL's trainer.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = setup.last_checkpoint(self.args.output_dir)
        self._epochs_behind = 0
        if resume_from_checkpoint and self.driver is not None:
            state = TrainerState.load_from_json(Path(resume_from_checkpoint) / TRAINER_STATE_NAME)
            self._epochs_behind = int(state.epoch)
        self._forget_round()
        try:
            return super().train(resume_from_checkpoint, *args, **options)
        except BaseException as error:
            self._forget_round()
            self.model.zero_grad()
            # A notebook keeps the traceback, and a new trainer needs the memory of this one.
            del self
            release(error)
            raise

    def _forget_round(self) -> None:
        """Drop the round at work, which may have been left amid its updates."""
        self._step = 0
        self._buffered_inputs = None
        self._tokens = self._answers = ()
        self._last_loaded_step = -1  # of vLLM
        self._current_train_step_time = 0.0
        self._entropy_window_stats = None
        logged = [*self._metrics.values(), *self._logs.values()]
        for each in (*logged, self._pending_metrics, self._pending_extra_logs):
            each.clear()
        if self.driver is not None:
            self.driver.outcome = None

    # A round: what is sampled, and what of it is trained on

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        # TRL draws the order of each epoch from one generator, which a resumed run begins afresh.
        for _ in range(self._epochs_behind):
            next(iter(sampler), None)  # the order is drawn with its first entry
        return sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The next micro-batch; a new round where the last one's are used up."""
        # Without a method, and in evaluation, rollouts are TRL's own affair.
        if self.driver is None or not self.model.training:
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
        driver = self.driver
        size = self.args.generation_batch_size // self.num_generations
        sampler = RoundSampler(self, driver)
        # A generation serves so many micro-steps, and an optimizer step takes so many.
        of_round = self.args.steps_per_generation * self.num_iterations
        of_step = self.args.gradient_accumulation_steps
        driver.begin(
            planned=math.ceil(self.state.max_steps * of_step / of_round),
            epoch=self._epoch(size),
            policy=sampler,
            max_new_tokens=self.max_completion_length,
            temperature=self.temperature,
        )
        # TRL's sampler repeats each prompt num_generations times in a row, so every such step is a
        # new one.
        if driver.method.curriculum.in_order:
            problems = sampler.named(gather_object(inputs)[:: self.num_generations])
        else:
            problems = sampler.find_more(size, [])
            driver.context = replace(driver.context, epoch=driver.method.curriculum.epoch)
        outcome = driver.play(problems, sampler.sample, sampler.find_more)
        # Processes that trained on different rows would drift apart without any error.
        advantages = token_advantages(outcome, np.ones(len(outcome.rows)))
        self.agree("the rollouts to train on", outcome.rows.tobytes(), advantages.values.tobytes())
        self._measured = np.full((3, len(outcome.rollouts)), np.nan)
        self._report(sampler)
        # TRL shuffles its generation batch here. Drawing as it does keeps what is sampled next the
        # same as without a method, where a method samples as much.
        torch.randperm(self.args.per_device_train_batch_size * self.args.steps_per_generation)
        return self.micro_batches(outcome, sampler.filler)

    def _epoch(self, problems: int) -> int:
        """Passes over a training set, in order, before a round of so many problems."""
        if not isinstance(self.train_dataset, Dataset):
            return 0
        return self.driver.round // max(1, len(self.train_dataset) // problems)

    # The update

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        part = inputs.get("workbench")
        if self.driver is None or part is None:
            return super()._compute_loss(model, inputs)
        rows, scale = part
        if not len(rows):
            # TRL would count a filler as a micro-batch without entropy and clipped ratios.
            metrics = copy.deepcopy(self._metrics["train"])
            nothing = super()._compute_loss(model, inputs)
            self._metrics["train"] = metrics
            return nothing * 0.0

        # TRL's entropy bonus has a weight of zero once the entropy is above its target.
        coefficient = self.entropy_coef
        if self.use_adaptive_entropy and self._last_world_entropy > self.args.entropy_target:
            coefficient = 0.0
        loss = super()._compute_loss(model, inputs)
        logprobs, entropy = self._tokens
        self._tokens = ()  # they hold the graph of this pass
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        if "update_statistics" in self.driver.needs:
            measured = self._row_statistics(inputs, logprobs.detach().float(), entropy, mask.bool())
            self._measured[:, rows] = measured
        # Without an entropy bonus the whole loss of the micro-batch has one scale.
        if not coefficient:
            return loss * scale
        # TRL averages its bonus over the tokens of each micro-batch. A token would then weigh more
        # where a micro-batch has fewer of them, and fillers count as micro-batches without entropy.
        # So TRL's own bonus, which it has subtracted, is taken back exactly as it was computed, and
        # an average over the whole optimizer step takes its place.
        bonus = coefficient * (entropy * mask).sum()
        accumulated = self.current_gradient_accumulation_steps
        without_bonus = loss + bonus / mask.sum().clamp(min=1) / accumulated
        # As in TRL's token mean: an optimizer step is a share of a round, or several rounds.
        of_step = accumulated / self.args.steps_per_generation / self.accelerator.num_processes
        tokens_of_step = inputs["num_items_in_batch"].clamp(min=1) * of_step
        return without_bonus * scale - bonus / tokens_of_step

    def _row_statistics(
        self,
        inputs: dict[str, Any],
        logprobs: torch.Tensor,
        entropy: torch.Tensor,
        mask: torch.Tensor,
    ) -> np.ndarray:
        """Clip ratio, entropy and difference of log-probabilities of a micro-batch's rows, (3, n).

        Means over the tokens of the mask (n, T) bool. Losses without a bound on the ratio have clip
        ratio 0.
        """
        # TRL leaves them out where the rows are computed by the weights that sampled them.
        old_logprobs = inputs.get("old_per_token_logps", logprobs)
        clipped = torch.zeros_like(mask)
        if self.loss_type in CLIPPED:
            clip = (self.epsilon_low, self.epsilon_high)
            objective = Objective(clip, self.importance_sampling_level, dual_clip=self.args.delta)
            _, clipped = gains(objective, logprobs, old_logprobs, inputs["advantages"], mask)
        elif self.loss_type == "cispo":
            log_ratio = log_ratio_of(logprobs, old_logprobs, mask, self.importance_sampling_level)
            clipped = mask & (log_ratio.exp() > self.epsilon_high)
        difference = (logprobs - old_logprobs).abs()
        columns = torch.stack([clipped.float(), entropy.detach().float(), difference])
        # Padding may hold anything, NaN included, so it is replaced and not multiplied by zero.
        sums = torch.where(mask, columns, 0.0).sum(2)
        return (sums / mask.sum(1).clamp(min=1)).cpu().numpy()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """TRL's step on a micro-batch; after the last one of a round the slots learn from it."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        steps = self.args.steps_per_generation * self.num_iterations
        if self.driver is not None and self._step % steps == 0:
            # The last micro-step of the last pass, so the updates of the round are complete.
            self.driver.learn(self._steps())
            self.log_metrics(self.driver.method.metrics())
        return loss

    def _steps(self) -> list[tuple[np.ndarray, StepStats]]:
        """What the updates of the round at work have measured so far, of all processes together."""
        if self.driver.outcome is None or "update_statistics" not in self.driver.needs:
            return []
        measured = self._measured
        # Each row was computed by one process, which alone has numbers for it.
        for part in gather_object([measured]):
            measured = np.where(np.isnan(measured), part, measured)
        rows = self.driver.outcome.rows
        stats = StepStats(math.nan, math.nan, math.nan, 0, 0, *measured[:, rows])
        return [(np.arange(len(rows)), stats)]

    # What is logged

    def _report(self, sampler: RoundSampler) -> None:
        """Log what was sampled and selected, and warn where nothing can be learnt from it."""
        rollouts = self.driver.table()
        sampled = {"rollouts": sampler.sampled, "unscored": sampler.sampled - sampler.scored}
        self.log_metrics(round_metrics(rollouts, self.driver.round) | sampled)
        self.driver.check_not_empty(rollouts, ADVICE)
        # TRL has logged advantages of its own, of groups of one.
        logged = self._logs["advantages"]
        for place in range(len(logged)):
            logged[place] = float("nan")

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.driver is not None:
            # All processes measure together, and one of them writes. It writes before TRL does, so
            # that a checkpoint that TRL can resume from is never without this file.
            steps = self._steps()
            if self.args.should_save:
                step = self.state.global_step
                folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{step}"
                self.driver.save(folder, steps, step=step, known=int(self.verdict.known))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            has_method = (Path(checkpoint) / FILE).exists()
            if has_method != (self.driver is not None):
                raise ValueError(
                    f"resume_from_checkpoint: {checkpoint} is of a run "
                    f"{'with' if has_method else 'without'} a method, and this one is not; give "
                    "the method that it was made with as method=, None where there was none"
                )
            if self.driver is not None:
                numbers = self.driver.load(checkpoint, step=self.state.global_step)
                self.verdict.known = bool(numbers["known"])
        super()._load_optimizer_and_scheduler(checkpoint)


def _with_positions(model: Any, inputs: tuple, options: dict[str, Any]) -> Any:
    """The arguments of a forward pass of TRL's, with positions that begin behind the padding."""
    if options.get("use_cache") is False and options.get("position_ids") is None:
        options["position_ids"] = (options["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return inputs, options
