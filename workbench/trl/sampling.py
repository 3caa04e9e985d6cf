"""Sampling the rollouts of one round with TRL's trainer, on all processes together."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import gather_object

from workbench.adapters import Driver, as_problems, verdict_columns, with_prefix
from workbench.checks import checked_problems
from workbench.pools import Pool, Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.trl.setup import levels_of
from workbench.trl.table import Verdict, weighted_sum
from workbench.utils.validation import brief

# What a rollout may carry for TRL's loss besides its tokens: what vLLM reports, and which tokens
# the model itself wrote where tools or environments answer it.
FOR_THE_LOSS = ("sampling_per_token_logps", "importance_sampling_ratio", "tool_mask")


class SamplingTrainer(trl.GRPOTrainer):
    """TRL's trainer, which generates and scores any number of rollouts for the round of a method.

    Attributes
    ----------
    driver : Driver, optional
        None trains as TRL does.
    """

    # `Any` for the type checker: whatever a round calls has a Driver, and asks it without a check.
    driver: Any = None
    verdict: Verdict
    rows_at_once: int | None
    # What TRL computes within its calls and does not hand back: scores (R, F), token ids and texts
    # of the latest sample of this process, and the latest log-probabilities and entropies (R, T).
    _is_drawing = False
    _answers: tuple
    _tokens: tuple

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for the difference between vLLM and the model."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @cached_property
    def pool(self) -> Pool:
        """The training set as a pool of problems, with their difficulty from the column "level".

        Equal prompts are numbered in the order of the data set, which is the same in every run, so
        what a method has learnt of a problem is found again.
        """
        dataset = self.train_dataset
        # Without prompts, which environments then bring, the rows tell problems apart.
        problems = as_problems(dataset["prompt"] if "prompt" in dataset.column_names else dataset)
        if levels := levels_of(dataset):
            problems = [replace(each, level=level) for each, level in zip(problems, levels)]
        return Pool(problems)

    @cached_property
    def places(self) -> dict[str, int]:
        """The row of the training set of each problem of the pool, by its id."""
        return {problem.id: place for place, problem in enumerate(self.pool)}

    def log_metrics(self, metrics: dict[str, float]) -> None:
        """Log numbers with the prefix `workbench/`; those that are not finite are left out."""
        for name, value in with_prefix(metrics).items():
            self._metrics["train"][name].append(value)

    def agree(self, what: str, *values: bytes) -> None:
        """Raise ValueError, in every process, where processes are about to do different things."""
        if self.accelerator.num_processes == 1:
            return
        # A digest of fixed size is exchanged in place of whole arrays.
        digest = hashlib.sha256(b"".join(values)).hexdigest()
        if len(set(gather_object([digest]))) > 1:
            raise ValueError(
                f"{what}: the processes disagree; a slot may depend on the round's table and on "
                "context.rng alone, and every process needs the same method and seed"
            )

    # TRL's tensors

    def padded(self, rows: Ragged, fill: float = 0, side: str = "right") -> torch.Tensor:
        """The rows as (R, T), filled up on one side; T is a multiple of TRL's own setting."""
        padded = rows.padded(fill, side)
        missing = -padded.shape[1] % (self.pad_to_multiple_of or 1)
        width = (missing, 0) if side == "left" else (0, missing)
        padded = np.pad(padded, ((0, 0), width), constant_values=fill)
        return torch.as_tensor(padded, device=self.accelerator.device)

    def tokens(self, rollouts: Rollouts) -> dict[str, torch.Tensor]:
        """Tokens and masks under TRL's names, prompts filled up on the left."""
        inputs: dict[str, torch.Tensor] = {}
        for name, rows, side in (
            ("prompt", rollouts.prompt, "left"),
            ("completion", rollouts.response, "right"),
        ):
            ones = Ragged(np.ones(len(rows.values), dtype=np.int64), rows.offsets)
            ids = self.padded(rows, self._tokenizer.pad_token_id, side)
            inputs |= {f"{name}_ids": ids.long(), f"{name}_mask": self.padded(ones, 0, side)}
        return inputs

    # What TRL computes

    def draw(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], tuple]:
        """One rollout for each of these rows of the data set: TRL's own output, and the answers.

        The answers are scores (R, F), NaN where a reward function gave None, token ids and texts.
        """
        # TRL groups rows by this number. With 1 any number of rollouts can be asked for, and its
        # own advantages, which are not used, do not matter.
        generations = self.num_generations
        self.num_generations = 1
        self._is_drawing = True
        try:
            output = super()._generate_and_score_completions(rows)
        finally:
            self.num_generations = generations
            self._is_drawing = False
        # Every rollout was a group of its own to TRL. `workbench/all_positive` and so on tell it.
        self._metrics["train"].pop("frac_reward_zero_std", None)
        return output, self._answers

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        """TRL's rewards (R, F) of all processes; those of this process are kept."""
        scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._is_drawing:
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

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        if self._is_drawing and not self.corrects_sampler:
            # Most of what is sampled may not be trained on; `BatchingTrainer` computes the rest.
            return None, None, None
        results = super()._get_per_token_logps_and_entropies(model, *args, **options)
        if self.driver is not None:
            self._tokens = results[:2]
        return results

    def score_tokens(
        self, model: Any, batch: dict[str, Any], entropy: bool = False, at_once: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the response tokens and, if asked for, entropies, (R, T) both.

        In passes of `at_once` rows, by default as many as TRL's batch of a device.
        """
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            logprobs, entropies, _ = super()._get_per_token_logps_and_entropies(
                model,
                ids,
                mask,
                batch["completion_ids"].size(1),
                batch_size=at_once or self.args.per_device_train_batch_size,
                compute_entropy=entropy,
            )
        return logprobs, entropies


class RoundSampler:
    """What `rounds.play` asks for in one round: further problems, and scored rollouts.

    To the slots it is the policy as well.

    Parameters
    ----------
    trainer : SamplingTrainer
    driver : Driver
        Whose round has begun.

    Attributes
    ----------
    sampled : int
        Rollouts sampled so far.
    scored : int
        Those of them that a reward function scored.
    filler : Rollouts, optional
        The shortest rollout of the first request.
    """

    def __init__(self, trainer: SamplingTrainer, driver: Driver) -> None:
        self.trainer = trainer
        self.driver = driver
        self.rows: dict[str, dict[str, Any]] = {}  # id of a problem -> row of the data set
        self.sampled = 0
        self.scored = 0
        self.filler: Any = None

    # Problems

    def named(self, rows: Sequence[dict[str, Any]]) -> list[Problem]:
        """Rows of the data set as problems of the round."""
        # An environment may bring the prompt; the row that it is set up from then tells problems
        # apart.
        problems = as_problems([row.get("prompt", row) for row in rows])
        self.rows |= {problem.id: row for problem, row in zip(problems, rows)}
        return problems

    def find_more(self, n: int, problems: Sequence[Problem]) -> list[Problem]:
        """n further problems of the training set, chosen by the curriculum."""
        # A curriculum must not choose what the round has already.
        taken = frozenset(problem.id for problem in problems)
        context = replace(self.driver.context, taken=taken)
        trainer = self.trainer
        chosen = self.driver.method.curriculum.choose(trainer.pool, n, context)
        chosen = checked_problems("curriculum", chosen, taken, n)
        for problem in chosen:
            place = trainer.places.get(problem.id)
            if place is None or trainer.pool[place] != problem:
                raise ValueError(
                    f"curriculum: {brief(problem)} is none of train_dataset, whose rows TRL samples"
                )
            self.rows[problem.id] = trainer.train_dataset[place]
        return chosen

    # Rollouts

    def sample(
        self, problems: list[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        """Scored rollouts, counts (P,) of the problems; see `rounds.play`.

        Rollouts that no reward function scored are left out, as TRL leaves them out of its
        baselines.
        """
        trainer = self.trainer
        names = [problem.id for problem in problems]
        # Every process has asked its own copy of the allocator. If they differ, the gathering below
        # would wait for ever or mix up rollouts.
        trainer.agree("the counts of rollouts", "".join(names).encode(), counts.tobytes())
        wanted = np.repeat(np.array(names, dtype=object), counts).tolist()
        rollouts = self._sample_together(wanted)
        scores = rollouts["scores"]
        if self.filler is None:
            self.filler = rollouts.take([np.argmin(rollouts.prompt.lengths + rollouts.lengths)])
        weights = trainer.reward_weights.cpu().numpy()
        rollouts = rollouts.drop(["scores"]).assign(
            reward=weighted_sum(scores, weights, np.repeat(np.arange(len(names)), counts)),
            **verdict_columns(trainer.verdict(scores, first=self.driver.round == 1)),
        )
        self.sampled += len(wanted)
        rollouts = rollouts.take(~np.isnan(rollouts.reward))
        self.scored += len(rollouts)
        return self.driver.score(rollouts, problems, before, stage)

    def _sample_together(self, wanted: list[str]) -> Rollouts:
        """One rollout for each of the problems named, with a column of their scores (R, F).

        Every process samples an equal share; the last ones sample copies that are thrown away.
        """
        processes = self.trainer.accelerator.num_processes
        # Rounded up. All processes have to make the same calls, so the last ones fill up with
        # copies.
        share = -(-len(wanted) // processes)
        padded = wanted + wanted[-1:] * (share * processes - len(wanted))
        start = self.trainer.accelerator.process_index * share
        mine = padded[start : start + share]
        size = self.trainer.rows_at_once or share
        parts = [self._sample_share(mine[i : i + size]) for i in range(0, share, size)]
        # Gathered in the order of the processes, each of which has a run of consecutive rows, so
        # the result is in the order of `wanted`, with the copies at the end.
        return Rollouts.concat(gather_object(parts)).take(np.arange(len(wanted)))

    def _sample_share(self, names: list[str]) -> Rollouts:
        """One rollout of this process for each of the problems named."""
        trainer = self.trainer
        # Rows of the data set may have columns that TRL's loader has removed from its own.
        columns = next(iter(self.rows.values())).keys()
        # A rollout has a row of its own, as in TRL: an environment may play on the board that it
        # was given.
        rows = [copy.deepcopy({name: self.rows[key][name] for name in columns}) for key in names]
        output, (scores, responses, texts) = trainer.draw(rows)
        # TRL pads prompts on the left, and the mask says where they are. Taken as arrays first: an
        # operation of torch for every row would cost more than all the rest of this function.
        padded_prompts = output["prompt_ids"].cpu().numpy()
        prompt_mask = output["prompt_mask"].bool().cpu().numpy()
        prompts = [ids[mask] for ids, mask in zip(padded_prompts, prompt_mask)]
        # TRL counts a padding token at the end of a response as an end too.
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        rollouts = Rollouts(
            problem=np.asarray(names),
            prompt=Ragged.of(prompts, np.int32),
            response=Ragged.of(responses, np.int32),
            text=np.array(texts, dtype=object),
            truncated=np.array([ids[-1] not in ends for ids in responses]),
            columns={"scores": scores},
        )
        if output.get("old_per_token_logps") is not None:
            old_logprobs = of_tensor(output["old_per_token_logps"], rollouts.lengths)
            rollouts = rollouts.assign(old_logprobs=old_logprobs)
        # vLLM's columns only where the loss reads them: old responses that join have none.
        reads_sampler = trainer.corrects_sampler or trainer.off_policy_mask_threshold is not None
        for name in FOR_THE_LOSS:
            if name in output and (name == "tool_mask" or reads_sampler):
                column = of_tensor(output[name], rollouts.lengths)
                rollouts = rollouts.assign(**{name: column})
        if self.driver.needs & {"entropy", "old_logprobs", "token_entropy"}:
            rollouts = self._with_logprobs(rollouts)
        return rollouts

    def logprobs(self, rollouts: Rollouts, temperature: float) -> torch.Tensor:
        """Log-probabilities of the responses under the current weights, (R, T), in nats.

        The temperature is the trainer's, which is what a round's context says as well.
        """
        inputs = self.trainer.tokens(rollouts)
        return self.trainer.score_tokens(self.trainer.model, inputs)[0].float()

    def _with_logprobs(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with log-probabilities and entropies under the policy that sampled them."""
        trainer = self.trainer
        inputs = trainer.tokens(rollouts)
        logprobs, entropy = trainer.score_tokens(trainer.model, inputs, entropy=True)
        # Entropy is the mean over tokens that the model itself wrote.
        mask = inputs["completion_mask"]
        if "tool_mask" in rollouts:
            mask = mask * trainer.padded(rollouts["tool_mask"])
        entropy = torch.where(mask.bool(), entropy.double(), 0.0)
        rollouts = rollouts.assign(
            entropy=(entropy.sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy(),
            old_logprobs=of_tensor(logprobs, rollouts.lengths),
        )
        if "token_entropy" in self.driver.needs:
            rollouts = rollouts.assign(token_entropy=of_tensor(entropy, rollouts.lengths))
        return rollouts


def of_tensor(values: torch.Tensor, lengths: np.ndarray) -> Ragged:
    """Padded values (R, T) as rows of their lengths (R,), or (R, 1) as rows of one number."""
    padded = values.float().cpu().numpy()
    return Ragged.of_padded(padded, np.minimum(lengths, padded.shape[1]))
