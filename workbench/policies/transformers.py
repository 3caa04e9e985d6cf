"""Any causal language model of transformers as a policy, trained in full or by LoRA.

Sampling is a loop over batches: each prompt is computed once for all its responses, and rows that
have ended leave the batch. Models of the usual architectures are sampled with merged weights
(`merged.py`), all others through the public cache of transformers (`decoding.py`). With an engine
(`vllm.py`) that engine samples. What training computes is in `trainable.py`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)

from workbench.policies import Plan, Sampling, checks
from workbench.policies.decoding import (
    MOST_NEVER,
    CachedDecoder,
    PromptBatch,
    Request,
    Samples,
    WholeDecoder,
    sample,
    sample_by_engine,
    uniforms_of,
)
from workbench.policies.memory import BYTES
from workbench.policies.merged import MergedDecoder, supports
from workbench.policies.trainable import TrainableModel, on_its_threads
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.machine import keep_freed_memory
from workbench.utils.validation import brief, cause_of, one_of, whole_number
from workbench.verifiers.boxes import opened_thought

END_OF_PROMPT = 16  # tokens in which a template may open a thought
NOT_LINEAR = ("Router", "GroupedLinear")  # how classes are named that compute something else


class TransformersPolicy(TrainableModel):
    """A causal language model of transformers with its tokenizer.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
    tokenizer : transformers.PreTrainedTokenizerBase
    template : str
        A `str.format` pattern around the problem's text with "{prompt}" in it, or "chat" for the
        tokenizer's chat template.
    rows : int
        Responses sampled in one batch at most; it bounds the memory of the cache.
    name : str, optional
        Default: the model's path.
    engine : workbench.policies.vllm.Engine, optional
        What samples in place of the model itself.
    max_length : int, optional
        Tokens that prompt and response may take together, at most the engine's limit. Default: that
        limit, or none.
    float32_head : bool
        See `TrainableModel`.
    """

    samples_apart = False
    """Whether another program than the trainer samples; an engine does."""

    prompts_kept: dict[Any, Any] | None = None
    """The last prompts, as the merged decoder took them in; None keeps none.

    An evaluation asks twice for responses to the same prompts, and keeps the prompts in between.
    At any other time the weights may change, and what was computed with the old ones is wrong.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        template: str = "{prompt}",
        rows: int = 1024,
        chunk: int = 32,
        name: str | None = None,
        engine: Any = None,
        max_length: int | None = None,
        float32_head: bool = False,
    ) -> None:
        checks.check_template(template, tokenizer)
        checks.check_tokenizer(tokenizer, model.get_input_embeddings().weight.shape[0])
        whole_number("rows", rows, 1)
        whole_number("chunk", chunk, 1)
        checks.check_length(model.config, max_length)
        limit, self._why = checks.positions_of(model.config)
        of_engine = None if engine is None else engine.max_length
        self.max_length = min(filter(None, (max_length, of_engine, limit)), default=None)
        super().__init__(model, tokenizer, float32_head)
        turn = checks.end_of_turn(tokenizer) if template == "chat" else None
        self.end_ids = sorted({*self.end_ids, *([] if turn is None else [turn])})
        # Special tokens that a verifier may look for, such as <answer>, stay in the texts. Those
        # that only begin, end or pad a text, or stand for the unknown, do not.
        named = (getattr(tokenizer, f"{name}_id") for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES)
        self.left_out = {*self.end_ids, *named}
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.keeps_special = not special <= self.left_out
        self.template = template
        self.rows = rows
        self.chunk = chunk
        self.name = name or model.config.name_or_path
        self.engine = engine
        self.samples_apart = self.samples_apart or engine is not None
        if engine is not None and self.never is not None and len(self.never) > MOST_NEVER:
            raise ValueError(
                f"model: {len(self.never)} rows of its embedding stand for no token, and vLLM "
                f"leaves out {MOST_NEVER} at most; take engine='transformers'"
            )
        # How the model itself samples, where no other program does.
        kind = CachedDecoder if self.samples_apart else self._tried_decoder()
        self.merges = kind is MergedDecoder
        self.plain_decoder = CachedDecoder if self.merges else kind

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        lora: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        device: str | None = None,
        revision: str | None = None,
        vllm: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool | None = None,
        max_new_tokens: int = 0,
        **options: Any,
    ) -> TransformersPolicy:
        """Load a model from a directory or from the hub.

        Parameters
        ----------
        path : str or path
        lora : dict, optional
            Keyword arguments of `peft.LoraConfig`, such as
            dict(r=64, lora_alpha=64, target_modules="all-linear"); None trains all parameters.
        dtype : {"float32", "bfloat16", "float16"}
            Of the weights. On a GPU float32 weights compute in bfloat16. Weights in 16 bits are for
            sampling and for LoRA: they do not move by the small steps of full training.
        device : str, optional
            Default: "cuda" where there is one.
        revision : str, optional
        vllm : dict, optional
            Keyword arguments of `policies.vllm.Engine.start`, for a sampler of that kind.
        gradient_checkpointing : bool, optional
            Compute each layer again in the backward pass, in place of keeping what it computed.
            Default: on a GPU.
        max_new_tokens : int
            Of the longest response that will be asked for, which is compared with the model's
            positions before the weights are loaded.
        options
            Further arguments of the class.

        Raises
        ------
        ValueError
            For what does not fit the model, and for weights that cannot be read, are missing or not
            finite, with their file.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            keep_freed_memory()
        one_of("dtype", dtype, BYTES)
        template = options.get("template", "{prompt}")
        config, tokenizer = checks.load_configuration(path, revision, template)
        kind = _class_of(config)
        merges = bool(vllm and vllm.get("merges"))
        checks.check_quantised(config, lora, merges=merges)
        max_length = options.get("max_length") or (vllm or {}).get("max_length")
        checks.fix_rotation(config, max_length)
        checks.check_length(config, max_length, max_new_tokens)
        if vllm is not None:
            # The engine starts before the model is loaded, as it takes a share of what is free.
            from workbench.policies.vllm import Engine

            checks.check_hand_over(lora or {}, merges)
            options["engine"] = Engine.start(
                path,
                revision=revision,
                lora_rank=lora.get("r", 8) if lora else None,
                device=device,
                float32_head=options.get("float32_head", False),
                **vllm,
            )
        model = _load(kind, path, config, revision, dtype)
        model.to(device)
        if gradient_checkpointing is None:
            gradient_checkpointing = str(device).startswith("cuda")
        with warnings.catch_warnings():
            # transformers 5.24 gives a new name to what is called here, and peft calls the old one.
            warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
            if gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if lora is not None:
                model = _with_lora(model, lora)
        return cls(model, tokenizer, name=str(path), **options)

    def __repr__(self) -> str:
        size = f"{self.parameter_count:,} parameters"
        return f"{type(self).__name__}({self.name!r}, {size}, on {self.device})"

    # Sampling

    @on_its_threads
    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Any],
        counts: Any,
        sampling: Sampling,
        seed: int | Sequence[int],
        plan: Plan | None = None,
    ) -> Rollouts:
        """Sample `counts[i]` responses to `prompts[i]`; see `Policy.generate`.

        Notes
        -----
        Every response draws one uniform number a token from a generator derived from its prompt's
        seed, and takes the token by inverse cumulative distribution, so its draws do not depend on
        the rest of the batch. Where an engine samples, log-probabilities are the engine's own until
        `rescored` replaces them, and it tells no entropies.
        """
        batch = PromptBatch.of(prompts, counts, seed)
        size = len(batch.owner)
        encoded = Ragged.of(self.encode([each.prompt for each in batch.problems]), np.int32)
        self._check_lengths(batch.problems, encoded, sampling)
        # The texts that responses go on from, and which of them each row has.
        starts, start_of = encoded, batch.owner
        room = np.full(size, sampling.max_new_tokens)
        has_plan = plan is not None
        plan = plan or Plan()
        self._check_plan(plan, size)
        if plan.prefixes is not None:
            # Each different text of a prompt with its prefix once.
            whole = encoded.take(batch.owner).then(plan.prefixes, np.int32)
            starts, start_of = whole.distinct()
            room -= plan.prefixes.lengths

        self.model.eval()
        samples = Samples.empty(0, 1)
        if size:
            uniforms = uniforms_of(batch.seeds, batch.counts, sampling.max_new_tokens)
            rows = np.arange(size)
            request = Request(self, sampling, plan, start_of, uniforms, room, rows)
            samples = self._sample(starts, request, batch.seed_of_each)
        response = Ragged.of_padded(samples.tokens, samples.lengths)
        # The text of a response begins with its prefix, and with the mark of the thought that its
        # prompt opens.
        whole = response if plan.prefixes is None else plan.prefixes.then(response, np.int32)
        ends = self.decode([ids[-END_OF_PROMPT:].tolist() for ids in encoded], False)
        opened = [opened_thought(end) for end in ends]
        texts = self.decode([whole[row].tolist() for row in range(size)])
        texts = [opened[owner] + text for owner, text in zip(batch.owner, texts)]
        entropy = Ragged.of_padded(samples.entropies, samples.lengths)
        rollouts = Rollouts(
            **batch.columns,
            prompt=starts.take(start_of),
            response=response,
            old_logprobs=Ragged.of_padded(samples.logprobs, samples.lengths),
            text=np.array(texts, dtype=object),
            truncated=samples.truncated,
            token_entropy=entropy,
            entropy=entropy.means(),
        )
        if has_plan:
            rollouts = rollouts.assign(stopped=samples.stopped, lost=samples.lost)
        return rollouts

    def _sample(self, texts: Ragged, request: Request, seeds: list[int]) -> Samples:
        """A response to `texts[request.owner[i]]` for each row i, by the engine if there is one."""
        if self.engine is None:
            return self._draw(texts, request)
        self.engine.update(self.model)
        texts = texts.take(request.owner)
        samples = sample_by_engine(self.engine, texts, seeds, request, self.chunk)
        self.engine.rest()
        return samples

    def _check_plan(self, plan: Plan, size: int) -> None:
        """ValueError for a plan that this policy cannot follow in a request of so many rows."""
        if plan.prefixes is not None and np.isin(plan.prefixes.values, self.end_ids).any():
            raise ValueError("course: a prefix holds a token that ends responses")
        if plan.stop is not None and self.engine is None and size > self.rows:
            raise ValueError(
                f"rows={self.rows}: a course that stops rollouts sees all of a request at once, "
                f"and this one has {size}"
            )

    def comparable(self, sampling: Sampling) -> bool:
        """See `Policy.comparable`."""
        return self.engine is None or self.engine.comparable(sampling)

    def _draw(self, texts: Ragged, request: Request) -> Samples:
        """As `_sample`, by the model itself, in batches of `rows`."""
        # Texts of like length go together, so that little is padded.
        order = np.argsort(texts.lengths[request.owner], kind="stable")
        parts = [
            self._draw_batch(texts, request.take(order[start : start + self.rows]))
            for start in range(0, len(order), self.rows)
        ]
        return Samples.concat(parts).take(np.argsort(order))

    def _draw_batch(self, texts: Ragged, request: Request) -> Samples:
        """As `_draw`, in one batch."""
        # An architecture that is not known may keep tensors, which must stay ordinary ones.
        # The merged decoder has no hidden states of the model's own to show.
        merges = self.merges and not request.plan.states
        kind = MergedDecoder if merges else self.plain_decoder
        without_gradient = torch.inference_mode if merges else torch.no_grad
        # Merged weights choose the precision of each product themselves.
        precision = nullcontext() if merges else self._precision()
        with without_gradient(), precision:
            # Each distinct text is computed once for all its responses.
            distinct, text_of_row = np.unique(request.owner, return_inverse=True)
            decoder, logits = self._prefill(texts.take(distinct), kind)
            # Where a decoder copies its whole cache for every new row, sharing rows does not pay.
            share_prefixes = self.share_prefixes and decoder.compacts_at_once
            if share_prefixes:
                decoder.spread(np.arange(len(distinct)))
                row_of = text_of_row
            else:
                decoder.spread(text_of_row)
                logits = logits[torch.as_tensor(text_of_row, device=logits.device)]
                row_of = np.arange(len(text_of_row))
            return sample(decoder, logits, row_of, request, share_prefixes)

    def _prefill(self, prompts: Ragged, kind: Any) -> tuple[Any, torch.Tensor]:
        """A decoder that holds the prompts (P rows), and the logits (P, V) of the next tokens."""
        ids, mask = self._left_padded(prompts)
        if self.prompts_kept is None or kind is not MergedDecoder:
            decoder = kind(self)
            return decoder, decoder.begin(ids, mask)
        # Rows are spread from the kept decoder into memory of their own, so that it stays as it is.
        key = (ids.numpy().tobytes(), mask.numpy().tobytes())
        if key not in self.prompts_kept:
            decoder = kind(self)
            self.prompts_kept.clear()
            self.prompts_kept[key] = decoder, decoder.begin(ids, mask)
        decoder, logits = self.prompts_kept[key]
        return copy.copy(decoder), logits.clone()

    def _left_padded(self, texts: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, with the newest token of every row in the last column."""
        ids = texts.padded(self._pad_id, side="left")
        # The mask of right padding, read backwards, is that of left padding.
        mask = texts.mask()[:, ::-1].copy()
        return tuple(torch.as_tensor(each, device=self.device).long() for each in (ids, mask))

    def check_prompts(self, problems: Iterable[Problem]) -> None:
        """Raise ValueError for a problem whose prompt the tokenizer cannot express."""
        # Most tokenizers of today know every byte and have no token for the unknown.
        if self.tokenizer.unk_token_id is None:
            return
        for problem in problems:
            lost = checks.lost_characters(self.tokenizer, problem.prompt)
            if lost:
                raise ValueError(
                    f"problems: the model's tokenizer cannot express {''.join(lost)!r} in the "
                    f"prompt of {problem.id!r}, {brief(problem.prompt)}"
                )

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt inside the template."""
        is_chat = self.template == "chat"
        texts = [
            checks.in_chat(self.tokenizer, prompt)
            if is_chat
            else self.template.format(prompt=prompt)
            for prompt in prompts
        ]
        # A chat template writes special tokens itself, and any other may begin with the one that
        # the tokenizer puts in front.
        rows = self.tokenizer(texts, add_special_tokens=not is_chat)["input_ids"]
        twice = [self.tokenizer.bos_token_id] * 2
        return [row[1:] if row[:2] == twice else row for row in rows]

    def ends(self, tokens: np.ndarray, stop: Sequence[str]) -> np.ndarray:
        """Which responses, by their newest tokens (R, t), end with the last one, (R,) bool."""
        ended = np.isin(tokens[:, -1], self.end_ids)
        # A stop string may be spread over several tokens, so the newest ones are decoded together.
        if stop:
            tails = self.decode(tokens.tolist(), skip_special_tokens=False)
            ended |= np.array([any(text in tail for text in stop) for tail in tails], dtype=bool)
        return ended

    def decode(self, rows: list[list[int]], skip_special_tokens: bool = True) -> list[str]:
        """Each row of token ids as text."""
        if skip_special_tokens and self.keeps_special:
            rows = [[token for token in row if token not in self.left_out] for row in rows]
            skip_special_tokens = False
        decode = self.tokenizer.batch_decode
        if self.tokenizer.is_fast and not self.tokenizer.clean_up_tokenization_spaces:
            # What `batch_decode` asks of each row, asked of all rows at once.
            decode = self.tokenizer.backend_tokenizer.decode_batch
        return decode(rows, skip_special_tokens=skip_special_tokens)

    @on_its_threads
    @torch.no_grad()
    def prompt_states(self, prompts: Iterable[str]) -> np.ndarray:
        """Mean final hidden state over the tokens of each prompt, (P, H) float32."""
        tokens = Ragged.of(self.encode(list(prompts)), np.int64)
        mask = torch.as_tensor(tokens.mask(), device=self.device)[:, :, None]
        ids = torch.as_tensor(tokens.padded(self._pad_id), device=self.device)
        self.model.eval()
        with self._precision():
            hidden = self._states(ids)
        return ((hidden * mask).sum(1) / mask.sum(1)).float().cpu().numpy()

    def frozen(self) -> Any:
        """The policy as it stands, never to change.

        With LoRA it is the base model under the adapter, which takes no further memory; otherwise a
        copy.

        Raises
        ------
        ValueError
            For an adapter that changes the weights under it.
        """
        # A wrapper of peft: switching its adapter off gives the model as it was loaded.
        if not isinstance(self.model, PreTrainedModel):
            for adapter in self.model.peft_config.values():
                checks.check_reference(adapter)
            return _Reference(self)
        alone = copy.copy(self)
        alone.engine = None  # a reference never samples
        reference = copy.deepcopy(alone)
        reference.model.eval()
        return reference

    # Trials on a few tokens

    @torch.no_grad()
    def _tried_decoder(self) -> Any:
        """The fastest decoder whose logits are those of the trainer, on three short rollouts.

        Raises
        ------
        ValueError
            Where there is none: the model would be trained on another distribution than it samples.
        """
        rollouts = self._trial()
        expected = self._trained_logits(rollouts)
        kind, cause = type(self.model).__name__, ""
        if self.layout == "padded":
            each = [self._trained_logits(rollouts.take(np.array([row]))) for row in range(3)]
            cause = self._difference(torch.cat(each), expected)
        if cause:
            raise ValueError(f"model: {kind} computes a text differently beside others: {cause}")
        for decoder in (MergedDecoder, CachedDecoder, WholeDecoder):
            if decoder is MergedDecoder and not supports(self):
                continue
            before, cause = cause, self._tried(decoder, rollouts, expected)
            if not cause:
                if decoder is WholeDecoder:
                    text = f"model: {kind} is sampled slowly, without its cache: with it, {before}"
                    warnings.warn(text, stacklevel=4)
                return decoder
        raise ValueError(
            f"model: {kind} samples from another distribution than it would be trained on, with "
            f"its cache and without: {cause}"
        )

    def _tried(self, kind: Any, rollouts: Rollouts, expected: torch.Tensor) -> str:
        """Why a decoder is not the right one for the model; empty where it is."""
        prompts, row_of = rollouts.prompt.distinct()
        tokens = torch.as_tensor(rollouts.response.padded(), device=self.device).long()
        precision = nullcontext() if kind is MergedDecoder else self._precision()
        try:
            with precision:
                decoder, first = self._prefill(prompts, kind)
                decoder.spread(row_of)
                found = [first[torch.as_tensor(row_of, device=self.device)]]
                found += [decoder.advance(tokens[:, place]) for place in range(tokens.shape[1] - 1)]
        except Exception as error:  # whatever a cache of the model's own raises
            return cause_of(error)
        return self._difference(torch.stack(found, 1).flatten(0, 1).float(), expected)

    def _trained_logits(self, rollouts: Rollouts) -> torch.Tensor:
        """The trainer's logits for each response token of all rows, end to end, (M, V) float32."""
        with self._precision():
            states, predicts = self._states_in(self.layout, rollouts)
            return self._logits(states)[predicts]

    def _difference(self, logits: torch.Tensor, expected: torch.Tensor) -> str:
        """How far log-probabilities differ, where that is by more than rounding."""
        if self._is_close(logits, expected):
            return ""
        gap = (logits.log_softmax(-1) - expected.log_softmax(-1)).abs().max().item()
        return f"log-probabilities differ by up to {gap:.2g} nats"

    def _check_lengths(
        self, problems: Sequence[Problem], encoded: Ragged, sampling: Sampling
    ) -> None:
        """Raise ValueError when a prompt leaves too little room for its response."""
        lengths = encoded.lengths + sampling.max_new_tokens
        if self.max_length is None or lengths.max(initial=0) <= self.max_length:
            return
        longest = int(lengths.argmax())
        raise ValueError(
            f"max_length={self.max_length}: problem {problems[longest].id!r} has "
            f"{encoded.lengths[longest]} tokens and its response up to {sampling.max_new_tokens} "
            f"({self._why})"
        )


class _Reference:
    """A LoRA policy's base model: the same weights in memory, with the adapter switched off."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy

    def logprobs(self, rollouts: Rollouts, temperature: float = 1.0, entropy: bool = False) -> Any:
        """See `Policy.logprobs`."""
        model = self.policy.model
        training = model.training
        # The reference has no dropout. The mode is put back at once, since the layers that are
        # computed again in a backward pass must be in the mode of their forward pass.
        model.eval()
        try:
            with model.disable_adapter():
                return self.policy.logprobs(rollouts, temperature, entropy)
        finally:
            model.train(training)


def _class_of(config: Any) -> Any:
    """The class of transformers that loads a model with this configuration."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    # A model of text and images is one of text where there are no images.
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not config.is_encoder_decoder:
        return AutoModelForImageTextToText
    raise ValueError(f"model: {config.model_type!r} is no causal language model of transformers")


def _load(kind: Any, path: Any, config: Any, revision: str | None, dtype: str) -> Any:
    """The model of a directory or of the hub, with weights that are all there and finite."""
    try:
        with checks.quiet():
            model, told = kind.from_pretrained(
                path,
                # The one that was checked: an adapter's directory would lead to another's.
                config=config,
                dtype=dtype,
                revision=revision,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"model={str(_file(path))!r}: {cause_of(error)}") from error
    lacks = [f"the weight {name} is missing" for name in sorted(told["missing_keys"])]
    for name, weight in model.named_parameters():
        # A sum is finite only where all numbers are. Numbers of 8 bits have no sum.
        sums = weight.is_floating_point() and weight.element_size() > 1
        if sums and not weight.detach().sum(dtype=torch.float32).isfinite():
            lacks.append(f"the weight {name} is not finite")
    if lacks:
        raise ValueError(f"model={str(_file(path, lacks[0].split()[2]))!r}: {lacks[0]}")
    return model


def _file(path: Any, weight: str = "") -> Any:
    """The file of a model's directory that holds a weight, or that cannot be read; else `path`."""
    for file in sorted(Path(path).glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                if weight in opened.keys():
                    return file
        except SafetensorError:
            return file
    return path


def _with_lora(model: Any, lora: Mapping[str, Any]) -> Any:
    """The model with a fresh adapter, which is the same whatever was drawn before."""
    checks.check_packages("peft")
    from peft import LoraConfig, get_peft_model

    left_out = _not_adapted(model) if lora.get("target_modules") == "all-linear" else []
    if left_out:
        lora = {"exclude_modules": left_out, **lora}
    # peft draws the adapter from the global generator. A seed of its own gives all runs the same
    # start, and the fork leaves the generator as it was.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


def _not_adapted(model: Any) -> list[str]:
    """Names of linear modules that an adapter cannot stand on: those that compute something else,
    such as a router's choice, and the last one of a Mamba layer, whose kernels read its weight and
    pass its module by.
    """
    names = {
        "out_proj" for each in model.modules() if hasattr(each, "A_log") and hasattr(each, "D")
    }
    for name, each in model.named_modules():
        if isinstance(each, torch.nn.Linear) and type(each).__name__.endswith(NOT_LINEAR):
            names.add(name.rpartition(".")[2])
    return sorted(names)
