"""Sampling the rollouts of one round with TRL's trainer, on all processes together."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import gather_object

from workbench.adapters import Driver, as_problems, draws, prefixed, scored, verdict_columns
from workbench.policies import Sampling
from workbench.pools import Pool, Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.trl import table
from workbench.trl.table import Padding, Verdict


@dataclass
class Overheard:
    """What TRL computes within one of its calls and does not hand back.

    Attributes
    ----------
    sampling : bool
        Whether the call samples.
    answers : (scores (R, F), token ids of R responses, R texts)
        Of this process, NaN where a reward function gave None.
    tokens : (log-probabilities (R, T), entropies (R, T))
    """

    sampling: bool
    answers: tuple = ()
    tokens: tuple = ()


class TrainingSet:
    """A data set that can be indexed, as a pool of problems.

    Equal prompts are numbered in the order of the data set, which is the same in every run, so what
    a method has learnt of a problem is found again.

    Parameters
    ----------
    dataset : datasets.Dataset
        With the column "prompt", unless environments bring the prompts, and perhaps with "level",
        the difficulty of each problem.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        has_prompts = "prompt" in dataset.column_names
        problems = as_problems(dataset["prompt"] if has_prompts else dataset)
        if "level" in dataset.column_names:
            levels = dataset["level"]
            problems = [replace(each, level=level) for each, level in zip(problems, levels)]
        self.places = {problem.id: place for place, problem in enumerate(problems)}
        self.pool = Pool(problems)

    def row(self, problem: Problem) -> dict[str, Any]:
        """The row of a problem of the pool."""
        return self.dataset[self.places[problem.id]]


class SamplingTrainer(trl.GRPOTrainer):
    """TRL's trainer, which generates and scores any number of rollouts for the round of a method.

    Attributes
    ----------
    driver : Driver, optional
        None trains as TRL does.
    """

    # What TRL's own annotations leave open.
    args: Any
    num_generations: Any
    max_completion_length: Any
    model: Any
    processing_class: Any

    driver: Driver | None = None
    verdict: Verdict
    rows_at_once: int | None
    _training_set: TrainingSet | None = None
    _overheard: Overheard | None = None

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

    @property
    def reads_sampler(self) -> bool:
        """Whether TRL's loss reads what vLLM says of the tokens that it has sampled."""
        return self.corrects_sampler or self.off_policy_mask_threshold is not None

    def training_set(self) -> TrainingSet:
        """The training set as a pool of problems, made when it is first needed."""
        if self._training_set is None:
            self._training_set = TrainingSet(self.train_dataset)
        return self._training_set

    def log_metrics(self, metrics: dict[str, float]) -> None:
        """Log numbers with the prefix `workbench/`; those that are not finite are left out."""
        for name, value in prefixed(metrics).items():
            self._metrics["train"][name].append(value)

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

    # What TRL computes

    @contextmanager
    def overhearing(self, sampling: bool = False) -> Iterator[Overheard]:
        """Keep what TRL computes in the call within this block."""
        self._overheard = heard = Overheard(sampling)
        try:
            yield heard
        finally:
            self._overheard = None

    def draw(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], tuple]:
        """One rollout for each of these rows of the data set: TRL's own output, and the answers."""
        # TRL groups rows by this number. With 1 any number of rollouts can be asked for, and its
        # own advantages, which are not used, do not matter.
        generations = self.num_generations
        self.num_generations = 1
        try:
            with self.overhearing(sampling=True) as heard:
                output = super()._generate_and_score_completions(rows)
        finally:
            self.num_generations = generations
        # Every rollout was a group of its own to TRL. `workbench/all_positive` and so on tell it.
        self._metrics["train"].pop("frac_reward_zero_std", None)
        return output, heard.answers

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        """TRL's rewards (R, F) of all processes; those of this process are kept."""
        scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._overheard is not None:
            # TRL has gathered the rewards of all processes. Each has sent equally many rows.
            start = self.accelerator.process_index * len(prompts)
            own = scores[start : start + len(prompts)].float().cpu().numpy()
            texts = completions
            if not isinstance(completions[0], str):
                texts = self.processing_class.batch_decode(
                    completion_ids_list, skip_special_tokens=True
                )
            self._overheard.answers = own, completion_ids_list, texts
        return scores

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        heard = self._overheard
        if heard is not None and heard.sampling and not self.corrects_sampler:
            # Most of what is sampled may not be trained on; `BatchingTrainer` computes the rest.
            return None, None, None
        results = super()._get_per_token_logps_and_entropies(model, *args, **options)
        if heard is not None:
            heard.tokens = results[:2]
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


class Policy:
    """The trainer's model as a slot knows a policy."""

    def __init__(self, trainer: SamplingTrainer) -> None:
        self.trainer = trainer

    def logprobs(self, rollouts: Rollouts, temperature: float) -> torch.Tensor:
        """Log-probabilities of the responses under the current weights, (R, T), in nats.

        The temperature is the trainer's, which is what a round's context says as well.
        """
        assert temperature == self.trainer.temperature
        inputs = self.trainer.padding.tokens(rollouts)
        return self.trainer.score_tokens(self.trainer.model, inputs)[0].float()


class RoundSampler:
    """What `rounds.play` asks for in one round: further problems, and scored rollouts.

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

    def find_more(self, n: int, problems: Sequence[Problem]) -> Sequence[Problem]:
        """n further problems of the training set, chosen by the curriculum."""
        training_set = self.trainer.training_set()
        # A curriculum must not choose what the round has already.
        taken = frozenset(problem.id for problem in problems)
        context = replace(self.driver.context, taken=taken)
        chosen = self.driver.method.curriculum.choose(training_set.pool, n, context)
        self.rows |= {problem.id: training_set.row(problem) for problem in chosen}
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
        trainer.agree("the counts of rollouts", *names, counts)
        wanted = np.repeat(np.array(names, dtype=object), counts).tolist()
        if not wanted:
            raise ValueError(
                f"allocator: {self.driver.method.allocator!r} asked for a stage of no rollouts"
            )
        rollouts, scores = self._sample_together(wanted)
        if self.filler is None:
            self.filler = rollouts.take([np.argmin(rollouts.prompt.lengths + rollouts.lengths)])
        is_first = self.driver.round == 1
        rollouts = rollouts.assign(
            reward=table.weighted_sum(scores, trainer.reward_weights.cpu().numpy()),
            **verdict_columns(trainer.verdict(scores, is_first)),
            stage=np.full(len(wanted), stage),
            round=np.full(len(wanted), self.driver.round),
        )
        is_scored = np.isfinite(rollouts.reward)
        self.scored += int(is_scored.sum())
        self.sampled += len(wanted)
        rollouts = rollouts.take(is_scored)
        # After the unscored ones have left, so that the numbers of a problem's rollouts have no
        # gaps.
        rollouts = rollouts.assign(draw=draws(rollouts.problem, problems, before))
        sampling = Sampling(trainer.temperature, max_new_tokens=trainer.max_completion_length)
        return scored(rollouts, self.driver.method, sampling)

    def _sample_together(self, wanted: list[str]) -> tuple[Rollouts, np.ndarray]:
        """One rollout for each of the problems named, and their scores (R, F).

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
        rollouts = Rollouts.concat(gather_object([part for part, _ in parts]))
        scores = np.concatenate(gather_object([part for _, part in parts]))
        return rollouts.take(np.arange(len(wanted))), scores[: len(wanted)]

    def _sample_share(self, names: list[str]) -> tuple[Rollouts, np.ndarray]:
        """One rollout of this process for each of the problems named, and their scores (R, F)."""
        trainer = self.trainer
        # Rows of the data set may have columns that TRL's loader has removed from its own.
        columns = next(iter(self.rows.values())).keys()
        rows = [{name: self.rows[key][name] for name in columns} for key in names]
        output, (scores, responses, texts) = trainer.draw(rows)
        unknown = sorted(output.keys() - table.CARRIED)
        if unknown:
            raise ValueError(
                f"train_dataset: it makes {', '.join(unknown)}, and a method's table of rollouts "
                "holds tokens alone; train with method=None"
            )
        # TRL pads prompts on the left, and the mask says where they are. Taken as arrays first: an
        # operation of torch for every row would cost more than all the rest of this function.
        padded_prompts = output["prompt_ids"].cpu().numpy()
        prompt_mask = output["prompt_mask"].bool().cpu().numpy()
        prompts = [ids[mask] for ids, mask in zip(padded_prompts, prompt_mask)]
        # TRL counts a padding token at the end of a response as an end too.
        ends = {*trainer.eos_token_ids, trainer.padding.token}
        rollouts = Rollouts(
            problem=np.asarray(names),
            prompt=Ragged.of(prompts, np.int32),
            response=Ragged.of(responses, np.int32),
            text=np.array(texts, dtype=object),
            truncated=np.array([ids[-1] not in ends for ids in responses]),
        )
        old_logprobs = output.get("old_per_token_logps")
        if old_logprobs is not None:
            padded = old_logprobs.float().cpu().numpy()
            rollouts = rollouts.assign(old_logprobs=Ragged.of_padded(padded, rollouts.lengths))
        for name in table.FOR_THE_LOSS:
            # vLLM's columns only where the loss reads them: old responses that join have none.
            if name in output and (name == "tool_mask" or trainer.reads_sampler):
                column = table.rows_as_objects(output[name], rollouts.lengths)
                rollouts = rollouts.assign(**{name: column})
        if self.driver.needs & {"entropy", "old_logprobs", "token_entropy"}:
            rollouts = self._with_logprobs(rollouts)
        return rollouts, scores

    def _with_logprobs(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with log-probabilities and entropies under the policy that sampled them."""
        trainer = self.trainer
        inputs = trainer.padding.tokens(rollouts)
        logprobs, entropy = trainer.score_tokens(trainer.model, inputs, entropy=True)
        # Entropy is the mean over tokens that the model itself wrote.
        mask = inputs["completion_mask"]
        if "tool_mask" in rollouts:
            mask = mask * trainer.padding.column(rollouts["tool_mask"], rollouts.lengths)
        entropy = torch.where(mask.bool(), entropy.double(), 0.0)
        mean = entropy.sum(1) / mask.sum(1).clamp(min=1)
        columns: dict[str, Any] = {"entropy": mean.cpu().numpy()}
        for name, values in (("token_entropy", entropy), ("old_logprobs", logprobs)):
            if name == "old_logprobs" or name in self.driver.needs:
                padded = values.float().cpu().numpy()
                columns[name] = Ragged.of_padded(padded, rollouts.lengths)
        return rollouts.assign(**columns)
