"""From the rows that a method chose to the micro-batches of TRL's update.

A round's rows vary in number, so they are dealt to the processes and micro-batches in nearly equal
numbers. Where there are fewer rows than that, a micro-batch consists of one fully masked row, a
filler, since every process has to take part in every step.
"""

from typing import Any

import numpy as np
import torch
from trl.trainer.utils import use_adapter

from workbench.adapters import row_weights, token_advantages
from workbench.objectives import Objective
from workbench.rollouts import Ragged, Rollouts
from workbench.rounds import Round
from workbench.trl.sampling import FOR_THE_LOSS, SamplingTrainer

ROW_MEANS = ("grpo", "sapo", "dr_grpo", "luspo")  # TRL's losses that divide by a number of rows


def deal(lengths: np.ndarray, parts: int, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Deal rows to as many parts as the processes have micro-steps together.

    Parameters
    ----------
    lengths : (K,)
        Tokens of each row.
    parts : int
        In the order in which they are computed: a micro-step of every process, then the next one.
    rng : numpy.random.Generator, optional
        Deals at random. Without one, rows of similar length come together, which saves padding and
        evens out the work of the processes. Only to be used where all micro-steps of a round belong
        to one optimizer step.

    Returns
    -------
    list of int64 arrays
        Positions from 0 to K - 1. The arrays differ by at most one in length, and may be empty.

    Examples
    --------
    >>> deal(np.array([5, 1, 4, 2, 3]), parts=4, rng=None)
    [array([1, 3]), array([4]), array([2]), array([0])]
    """
    order = np.argsort(lengths, kind="stable") if rng is None else rng.permutation(len(lengths))
    return np.array_split(order, parts)


class BatchingTrainer(SamplingTrainer):
    """TRL's trainer, which makes a process's micro-batches of a round.

    Attributes
    ----------
    objective : Objective
        That of the method, of which the weights of rows depend on the aggregation and the length; a
        plain one where the loss is that of TRL's configuration.
    """

    objective: Objective

    def micro_batches(self, outcome: Round, filler: Rollouts) -> list[dict[str, Any]]:
        """Inputs of TRL's loss, one for each of its steps_per_generation.

        They hold, under the key "workbench", the rows (n,) int64 of the round that they consist of,
        none for a filler, and what TRL's loss is to be multiplied with.

        Parameters
        ----------
        outcome : Round
        filler : Rollouts (1 row)
            What a micro-batch without rows computes, fully masked.
        """
        device = self.accelerator.device
        steps = self.args.steps_per_generation
        chosen = outcome.rollouts.take(outcome.rows)
        # TRL has no weight of a row, see `adapters.token_advantages`.
        weights = row_weights(outcome, self.objective.loss_aggregation)
        advantages = token_advantages(outcome, weights)
        # `chosen` counts in the averages of the loss. Only `active`, positions in it, is computed.
        active = self._rows_to_compute(chosen, advantages)
        self.log_metrics({"computed": len(active)})

        lengths = (chosen.prompt.lengths + chosen.lengths)[active]
        # Where all micro-steps of the round add up to one gradient, any order will do. Otherwise
        # sorting would give one optimizer step the short rows and the next one the long ones.
        is_one_step = self.args.gradient_accumulation_steps % steps == 0
        rng = None if is_one_step else self.driver.context.rng("micro-batches")
        # The same deal in every process, since lengths and generator are the same. Each then takes
        # its own part of every micro-step.
        processes = self.accelerator.num_processes
        shares = deal(lengths, steps * processes, rng)[self.accelerator.process_index :: processes]

        is_hidden = chosen.truncated & self.mask_truncated_completions
        # A truncated response that TRL is told to mask counts no tokens. TRL's token mean divides
        # by the tokens of all chosen rows, those of advantage zero included.
        tokens = chosen.lengths
        if "tool_mask" in chosen:
            tokens = np.array([mask.sum() for mask in chosen["tool_mask"]])
        total = torch.as_tensor(int((tokens * ~is_hidden).sum()), device=device)
        batches = []
        for share in shares:
            mine = active[share]
            if len(mine):
                rows, is_shown = chosen.take(mine), ~is_hidden[mine]
                values = self.padded(advantages.take(mine)).float()
            else:
                # A filler makes this process take part in the collective operations of the step.
                # Its mask and its advantage are zero, so it adds nothing.
                rows, is_shown = filler, np.zeros(1, dtype=bool)
                values = torch.zeros((1, 1), device=device)
            batch: dict[str, Any] = self.tokens(rows)
            batch["completion_mask"] *= torch.as_tensor(is_shown[:, None], device=device)
            # One number a row where its tokens are alike, since a ratio of the whole response is
            # one number too.
            is_by_token = isinstance(outcome.advantages, Ragged)
            batch["advantages"] = values if is_by_token else values[:, 0]
            batch |= self._logprobs(batch, rows)
            batch["num_items_in_batch"] = total
            batch["workbench"] = outcome.rows[mine], self._scale(len(mine), len(chosen))
            batches.append(batch)
        return batches

    def _rows_to_compute(self, chosen: Rollouts, advantages: Ragged) -> np.ndarray:
        """Which of the chosen rows the gradient depends on."""
        carries_gradient = chosen["gradient"]
        # The gradient reaches a row of advantage zero through a penalty or the auxiliary loss of a
        # mixture of experts. With the other two settings it changes what becomes of the rows around
        # it.
        has_other_terms = (
            self.beta != 0
            or self._entropy_bonus_enabled
            or self.aux_loss_enabled
            or self.args.top_entropy_quantile < 1
            or self.loss_type == "bnpo"
        )
        if has_other_terms:
            return np.flatnonzero(carries_gradient)
        has_advantage = (advantages.padded() != 0).any(axis=1)
        return np.flatnonzero(carries_gradient & has_advantage)

    def _scale(self, rows: int, chosen: int) -> float:
        """What TRL's loss of a micro-batch is multiplied with.

        Losses that divide by the micro-batch's rows are to divide by the round's chosen ones.
        """
        if not rows or self.loss_type not in ROW_MEANS:
            return 1.0
        # TRL divides the loss of each part by the part's own rows, and averages over all parts.
        # This factor makes that a division by all chosen rows.
        parts = self.accelerator.num_processes * self.args.steps_per_generation
        scale = rows * parts / chosen
        limit: Any = self.max_completion_length
        # TRL's constant is max_completion_length, where a method does not name its own.
        if self.loss_type == "dr_grpo" and self.objective.length is not None:
            scale *= limit / self.objective.length
        return scale

    def _logprobs(self, batch: dict[str, Any], rows: Rollouts) -> dict[str, Any]:
        """What TRL's loss needs of the policy that sampled, of the reference and of vLLM."""
        config = self.args
        further = {}
        # Not zero where the weights change between sampling and the last update of a round.
        # Otherwise the ratio is 1, and TRL takes the log-probabilities at hand for the old ones.
        several_steps = config.gradient_accumulation_steps % (
            config.steps_per_generation * self.num_iterations
        )
        if self.corrects_sampler or "old_logprobs" in self.driver.needs:
            # Old rows keep the probabilities that they were sampled with.
            further["old_per_token_logps"] = self.padded(rows.old_logprobs)
        elif several_steps:
            further["old_per_token_logps"] = self._score(self.model, batch)
        if self.beta != 0:
            further["ref_per_token_logps"] = self._reference_logprobs(batch)
        for name in FOR_THE_LOSS:
            if name in rows:
                fill = 1.0 if name == "tool_mask" else 0.0  # as TRL fills them
                values = self.padded(rows[name], fill)
                # One number a response is not padded to its width.
                is_by_token = np.array_equal(rows[name].lengths, rows.lengths)
                further[name] = values if is_by_token else values[:, :1]
        return further

    def _reference_logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        if self.ref_model is not None:
            return self._score(self.ref_model, batch)
        model = self.accelerator.unwrap_model(self.model)
        # With LoRA the reference is a second adapter of the same model, or the model with none.
        adapter = "ref" if "ref" in model.peft_config else None
        with use_adapter(model, adapter_name=adapter):
            return self._score(self.model, batch)

    def _score(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities of a micro-batch under some weights, in one pass.

        Processes have micro-batches that differ by a row, and every pass may be a common operation.
        """
        return self.score_tokens(model, batch, at_once=len(batch["prompt_ids"]))[0]
