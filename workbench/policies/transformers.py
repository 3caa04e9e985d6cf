"""Any causal language model of transformers as a policy, trained in full or by LoRA.

Sampling is a loop over batches: each prompt is computed once for all its responses, and rows that
have ended leave the batch. Models of the usual architectures are sampled with merged weights
(`merged.py`), all others through the public cache of transformers (`decoding.py`). With an engine
(`vllm.py`) that engine samples.

Log-probabilities are computed at response positions only and, for large vocabularies, in recomputed
chunks, so that no (R, T, V) tensor is ever held.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache

from workbench.grpo import micro_batches
from workbench.policies import Sampling
from workbench.policies.checks import (
    check_length,
    check_memory,
    check_quantised,
    check_template,
    check_tokenizer,
    load_configuration,
    offline_hint,
    quiet,
)
from workbench.policies.decoding import CachedDecoder, Decoder, Drawn, sample, uniforms_of
from workbench.policies.merged import MergedDecoder, supports
from workbench.policies.packing import pack
from workbench.problems import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.seeding import derive

LOGIT_CHUNK = 2**24  # logits held at once: 64 MiB in float32
RESCORED = 16_384  # tokens of one forward pass over what another sampler has drawn
STOP_TOKENS = 32  # newest tokens that are searched for a stop string
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class TransformersPolicy:
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
        Tokens that prompt and response may take together. Default: the engine's limit, or none.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        template: str = "{prompt}",
        rows: int = 1024,
        name: str | None = None,
        engine: Any = None,
        max_length: int | None = None,
    ) -> None:
        check_template(template, tokenizer)
        check_tokenizer(tokenizer, model.get_input_embeddings().weight.shape[0])
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        self.rows = rows
        self.engine = engine
        self.max_length = max_length
        if max_length is None and engine is not None:
            self.max_length = engine.max_length
        self.name = name or model.config.name_or_path
        core = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.decoder = core.get_decoder()
        self.head = core.get_output_embeddings()
        self.parameter_count = core.num_parameters()
        self.end_ids = _end_ids(tokenizer, model.generation_config)
        self.buffers: dict[str, torch.Tensor] = {}  # memory that sampling uses again and again
        self._check_logits()
        self.merges = engine is None and self._can_merge()
        self.packs = True
        if core.config._attn_implementation == "sdpa":
            core.set_attn_implementation("workbench_packed")

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
        device : str, optional
            Default: "cuda" where there is one.
        revision : str, optional
        vllm : dict, optional
            Keyword arguments of `policies.vllm.Engine.start`, for a sampler of that kind.
        options
            Further arguments of the class.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        config, tokenizer = load_configuration(path, revision, options.get("template", "{prompt}"))
        check_quantised(config, lora)
        check_length(config, (vllm or {}).get("max_length"))
        # Bytes a weight: itself, and where it is trained its gradient and Adam's two moments.
        trainer = BYTES[dtype] * (1 if lora else 4)
        if vllm is not None:
            # The engine starts before the model is loaded, as it takes a share of what is free.
            from workbench.policies.vllm import Engine

            rank = lora.get("r", 8) if lora else None
            options["engine"] = Engine.start(
                path, revision=revision, lora_rank=rank, device=device, trainer=trainer, **vllm
            )
        if str(device).startswith("cuda"):
            check_memory(config, trainer=trainer)
        with offline_hint(path), quiet():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype), revision=revision
            )
        model.to(device)
        if lora is not None:
            model = _with_lora(model, lora)
        return cls(model, tokenizer, name=str(path), **options)

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.head.weight.device

    # Sampling

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Any], counts: Any, sampling: Sampling, seed: int | Sequence[int]
    ) -> Rollouts:
        """Sample `counts[i]` responses to `prompts[i]`; see `Policy.generate`.

        Notes
        -----
        Every response draws one uniform number a token from a generator derived from its prompt's
        seed, and takes the token by inverse cumulative distribution, so its draws do not depend on
        the rest of the batch. Where another sampler draws, log-probabilities and entropies are the
        trainer's, and the further column `sampler_gap` (R,) is the mean over tokens of |sampler's
        log-probability - trainer's|, NaN where the two are not of the same distribution.
        """
        problems = [
            prompt if isinstance(prompt, Problem) else Problem(str(i), prompt, "")
            for i, prompt in enumerate(prompts)
        ]
        counts = _checked_counts(counts, len(problems))
        seeds = [derive(seed, i) for i in range(len(problems))] if np.ndim(seed) == 0 else seed
        encoded = Ragged.of(self.encode([problem.prompt for problem in problems]), np.int32)
        self._check_lengths(problems, encoded, sampling)
        owner = np.repeat(np.arange(len(problems)), counts)
        draw = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)

        self.model.eval()
        if not len(owner):
            drawn = Drawn.empty(0, 1)
        elif self.engine is None:
            uniforms = uniforms_of(seeds, counts, sampling.max_new_tokens)
            drawn = self._draw(encoded, owner, uniforms, sampling)
        else:
            self.engine.update(self.model)
            of_rows = [derive(int(seeds[i]), "response", int(j)) for i, j in zip(owner, draw)]
            drawn = self.engine.respond(encoded.take(owner), of_rows, sampling, self.end_ids)
        rollouts = self._rollouts(problems, encoded, owner, draw, drawn)
        return self._rescored(rollouts, sampling) if self._samples_apart else rollouts

    @property
    def _samples_apart(self) -> bool:
        """Whether what samples computes otherwise than what is trained."""
        return self.engine is not None

    def _draw(
        self, prompts: Ragged, owner: np.ndarray, uniforms: np.ndarray, sampling: Sampling
    ) -> Drawn:
        """A response to `prompts[owner[i]]` for each row i of the uniforms (R, T)."""
        # Prompts of like length go together, so that little is padded.
        order = np.argsort(prompts.lengths[owner], kind="stable")
        parts = []
        for start in range(0, len(order), self.rows):
            rows = order[start : start + self.rows]
            parts.append(self._draw_batch(prompts, owner[rows], uniforms[rows], sampling))
        return Drawn.concat(parts).take(np.argsort(order))

    def _draw_batch(
        self, prompts: Ragged, owner: np.ndarray, uniforms: np.ndarray, sampling: Sampling
    ) -> Drawn:
        def ends(tokens: np.ndarray) -> np.ndarray:
            return self._ends(tokens, sampling.stop)

        # An architecture that is not known may keep tensors, which must stay ordinary ones.
        without_gradient = torch.inference_mode if self.merges else torch.no_grad
        with without_gradient():
            # Each distinct prompt is computed once for all its responses.
            distinct, prompt_of_row = np.unique(owner, return_inverse=True)
            decoder, logits = self._prefill(prompts.take(distinct), self.merges)
            decoder.spread(prompt_of_row)
            logits = logits[torch.as_tensor(prompt_of_row, device=logits.device)]
            return sample(decoder, logits, uniforms, sampling, ends)

    def _prefill(self, prompts: Ragged, merged: bool) -> tuple[Decoder, torch.Tensor]:
        """A decoder that holds the prompts (P rows), and the logits (P, V) of the next tokens."""
        ids = torch.as_tensor(prompts.padded(self._pad_id, side="left"), device=self.device).long()
        mask = torch.as_tensor(prompts.mask()[:, ::-1].copy(), device=self.device).long()
        cache = DynamicCache(config=self.model.config)
        states = self.decoder(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        kind = MergedDecoder if merged else CachedDecoder
        return kind(self, cache, mask), self.head(states[:, -1])

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt inside the template."""
        if self.template == "chat":
            return [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}],
                    add_generation_prompt=True,
                    return_dict=False,
                )
                for prompt in prompts
            ]
        texts = [self.template.format(prompt=prompt) for prompt in prompts]
        return self.tokenizer(texts)["input_ids"]

    def _ends(self, tokens: np.ndarray, stop: Sequence[str]) -> np.ndarray:
        """Which of the rows (R, t) end with their newest token, (R,) bool."""
        newest = tokens[:, -1]
        ended = np.zeros(len(newest), dtype=bool)
        for token in self.end_ids:
            ended |= newest == token
        if stop:
            tails = self._decode(tokens[:, -STOP_TOKENS:].tolist(), skip_special_tokens=False)
            ended |= np.array([any(text in tail for text in stop) for tail in tails], dtype=bool)
        return ended

    def _rollouts(
        self,
        problems: Sequence[Problem],
        encoded: Ragged,
        owner: np.ndarray,
        draw: np.ndarray,
        drawn: Drawn,
    ) -> Rollouts:
        response = Ragged.of_padded(drawn.tokens, drawn.lengths)
        entropy = Ragged.of_padded(drawn.entropies, drawn.lengths)
        return Rollouts(
            problem=np.array([problem.id for problem in problems], dtype=str)[owner],
            level=np.array([problem.level for problem in problems], dtype=np.int64)[owner],
            answer=np.array([problem.answer for problem in problems], dtype=object)[owner],
            prompt=encoded.take(owner),
            response=response,
            old_logprobs=Ragged.of_padded(drawn.logprobs, drawn.lengths),
            text=self._texts(response),
            draw=draw,
            truncated=drawn.truncated,
            token_entropy=entropy,
            entropy=entropy.means(),
        )

    def _texts(self, responses: Ragged) -> np.ndarray:
        """The responses as text without special tokens, (R,) object."""
        texts = np.full(len(responses), "", dtype=object)
        rows = [responses[i].tolist() for i in range(len(responses))]
        if rows:
            texts[:] = self._decode(rows, skip_special_tokens=True)
        return texts

    def _decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        """Each row of token ids as text."""
        tokenizer = self.tokenizer
        if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
            # What `batch_decode` asks of each row, asked of all rows at once.
            decode = tokenizer.backend_tokenizer.decode_batch
        else:
            decode = tokenizer.batch_decode
        return decode(rows, skip_special_tokens=skip_special_tokens)

    def _rescored(self, rollouts, sampling):
        """The rollouts with the trainer's log-probabilities and entropies, and how far the sampler's were from them."""
        theirs = rollouts.old_logprobs.padded()
        ours, entropies = np.zeros_like(theirs), np.zeros(len(rollouts))
        for rows in micro_batches(rollouts, np.arange(len(rollouts)), RESCORED):
            logprobs, entropy = self.logprobs(
                rollouts.take(rows), sampling.temperature, entropy=True
            )
            ours[rows, : logprobs.shape[1]] = logprobs.float().cpu().numpy()
            entropies[rows] = entropy.sum(1).cpu().numpy()
        lengths = rollouts.lengths
        gap = np.abs(theirs - ours).sum(1) / lengths
        if self.engine is not None and not self.engine.comparable(sampling):
            gap[:] = np.nan
        return rollouts.assign(
            old_logprobs=Ragged.of_padded(ours, lengths),
            entropy=entropies / lengths,
            sampler_gap=gap,
        )

    # Training

    def logprobs(self, rollouts: Rollouts, temperature: float = 1.0, entropy: bool = False) -> Any:
        """Log-probabilities of the response tokens by a forward pass; see `Policy.logprobs`."""
        mask = torch.as_tensor(rollouts.response.mask(), device=self.device)
        targets = torch.as_tensor(rollouts.response.values, device=self.device).long()
        chunk = max(1, LOGIT_CHUNK // self.head.weight.shape[0])
        scale = 1.0 / temperature if temperature > 0 else 1.0
        with self._precision():
            states = self._response_states(rollouts)
            pieces = [
                self._token_logprobs(
                    states[i : i + chunk], targets[i : i + chunk], scale, len(targets) > chunk
                )
                for i in range(0, len(targets), chunk)
            ]

        def padded(values: Sequence[torch.Tensor]) -> torch.Tensor:
            empty = torch.zeros(mask.shape, device=self.device)
            return empty.masked_scatter(mask, torch.cat(values))

        logprobs, entropies = zip(*pieces)
        return (padded(logprobs), padded(entropies)) if entropy else padded(logprobs)

    def _response_states(self, rollouts: Rollouts) -> torch.Tensor:
        """Final hidden states at the positions that predict response tokens, (N, H), rows end to
        end.
        """
        if self.packs:
            packing = pack(rollouts, self.device)
            # An attention mask of four dimensions tells transformers to make none.
            states = self.decoder(
                input_ids=packing.ids[None],
                position_ids=packing.positions[None],
                attention_mask=torch.zeros(1, 1, 1, 1, device=self.device),
                use_cache=False,
                packing=packing,
            ).last_hidden_state[0]
            return states.index_select(0, packing.predicts)
        prompts, responses = rollouts.prompt.lengths, rollouts.lengths
        rows = [
            np.concatenate([rollouts.prompt[i], rollouts.response[i]]) for i in range(len(rollouts))
        ]
        # Rows are padded on the right, where a causal model cannot see them.
        ids = Ragged.of(rows, np.int64).padded(self._pad_id)
        states = self._states(torch.as_tensor(ids, device=self.device))
        place = np.arange(ids.shape[1])
        predicts = (place >= prompts[:, None] - 1) & (place < (prompts + responses)[:, None] - 1)
        return states[torch.as_tensor(predicts, device=self.device)]

    def _states(self, ids: torch.Tensor) -> torch.Tensor:
        """Final hidden states (R, T, H) of token ids (R, T)."""
        return self.decoder(input_ids=ids, use_cache=False).last_hidden_state

    def _precision(self) -> AbstractContextManager:
        """The context of every forward pass of the trainer."""
        return nullcontext()

    def _token_logprobs(
        self, states: torch.Tensor, targets: torch.Tensor, scale: float, recompute: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of a chunk of tokens, (N,) each; with `recompute` the
        logits are computed again in the backward pass.
        """

        def score(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs = torch.log_softmax(self.head(states).float() * scale, dim=-1)
            entropies = -(logprobs.exp() * logprobs).sum(-1)
            return logprobs.gather(1, targets[:, None])[:, 0], entropies

        return checkpoint(score, states, use_reentrant=False) if recompute else score(states)

    @torch.no_grad()
    def prompt_states(self, prompts):
        """Mean final hidden state over each prompt's tokens, (P, H) float32 NumPy."""
        tokens = Ragged.of(self.encode(list(prompts)), np.int64)
        mask = torch.as_tensor(tokens.mask(), device=self.device)[:, :, None]
        self.model.eval()
        with self._precision():
            hidden = self._states(torch.as_tensor(tokens.padded(self._pad_id), device=self.device))
        return ((hidden * mask).sum(1) / mask.sum(1)).float().cpu().numpy()

    def frozen(self):
        """The policy as it stands, never to change: a copy, or for LoRA the base model under the adapter."""
        if hasattr(self.model, "disable_adapter"):
            return _Reference(self)
        alone = copy.copy(self)
        alone.engine = None
        alone.buffers = {}
        return copy.deepcopy(alone)

    def parameters(self):
        """The trainable parameters."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def state_dict(self):
        """Name to tensor of the trainable parameters, detached copies on the CPU."""
        named = self.model.named_parameters()
        return {name: p.detach().cpu().clone() for name, p in named if p.requires_grad}

    def load_state_dict(self, state):
        """Sets the trainable parameters; names and shapes must match exactly."""
        own = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if own.keys() != state.keys():
            raise ValueError(
                f"state: parameter names differ, as {sorted(own.keys() ^ state.keys())[0]}"
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(state[name])

    def save(self, path):
        """Writes the model (a LoRA policy: its adapter) and the tokenizer to directory `path`."""
        with quiet():
            self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)

    @property
    def _pad_id(self):
        return (
            self.tokenizer.pad_token_id
            if self.tokenizer.pad_token_id is not None
            else self.end_ids[0]
        )

    @torch.no_grad()
    def _check_logits(self):
        """Some architectures rescale or cap their logits after the head; computing them here would then be wrong."""
        ids = torch.tensor([[self.end_ids[0]] * 2], device=self.device)
        with self._precision():
            ours, theirs = self.head(self._states(ids)), self.model(input_ids=ids).logits
        if not torch.allclose(ours.float(), theirs.float(), atol=1e-2, rtol=1e-2):
            raise ValueError(
                f"model: {type(self.model).__name__} changes its logits after the head, which is not supported"
            )

    @torch.no_grad()
    def _can_merge(self) -> bool:
        """Whether merged weights compute what the model computes, tried on two short prompts."""
        if not supports(self):
            return False
        token = self.end_ids[0]
        prompts = Ragged.of([[token], [token, token, token]], np.int32)
        newest = torch.tensor([token, token], device=self.device)
        self.model.eval()
        plain, _ = self._prefill(prompts, merged=False)
        merged, _ = self._prefill(prompts, merged=True)
        merged.spread(np.arange(2))
        expected = plain.advance(newest)
        return torch.allclose(merged.advance(newest), expected, atol=1e-4, rtol=1e-4)

    def _check_lengths(self, problems, encoded, sampling):
        lengths = encoded.lengths + sampling.max_new_tokens
        if self.max_length is not None and len(lengths) and lengths.max() > self.max_length:
            i = int(lengths.argmax())
            raise ValueError(
                f"max_length={self.max_length}: problem {problems[i].id!r} has {encoded.lengths[i]} tokens and its "
                f"response may have {sampling.max_new_tokens}; raise it, or lower sampling.max_new_tokens"
            )


class _Reference:
    """A LoRA policy's base model: same weights in memory, adapter switched off."""

    def __init__(self, policy):
        self.policy = policy

    def logprobs(self, rollouts, temperature=1.0, entropy=False):
        with self.policy.model.disable_adapter():
            return self.policy.logprobs(rollouts, temperature, entropy)


def _with_lora(model, lora):
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ImportError("LoRA needs a package: pip install peft") from None
    with torch.random.fork_rng():  # one adapter to start from, whatever was drawn before
        torch.manual_seed(0)
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


def _end_ids(tokenizer: Any, generation_config: Any) -> list[int]:
    """The tokens that end a response, ascending: the tokenizer's, and those the model names."""
    named = generation_config.eos_token_id
    if named is None:
        named = []
    if isinstance(named, int):
        named = [named]
    return sorted({tokenizer.eos_token_id, *named})


def _checked_counts(counts: Any, prompts: int) -> np.ndarray:
    """Counts as int64; ValueError unless there is one of at least 0 for each prompt."""
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != (prompts,):
        raise ValueError(
            f"counts has shape {counts.shape}: one count for each of the {prompts} prompts is "
            "needed"
        )
    if (counts < 0).any():
        raise ValueError(f"counts={counts.tolist()}: counts cannot be negative")
    return counts
