"""Any causal language model of transformers as a policy, trained in full or by LoRA.

Sampling is a loop over batches: each prompt is computed once for all its responses, and rows that
have ended leave the batch. Models of the usual architectures are sampled with merged weights
(`merged.py`), all others through the public cache of transformers (`decoding.py`). With an engine
(`vllm.py`) that engine samples.

Training computes rows end to end, with what a group has in common only once (`packing.py`), where
the model allows that, and padded rows otherwise. Log-probabilities are computed at response
positions only and, for large vocabularies, in recomputed chunks, so that no (R, T, V) tensor is
ever held.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from workbench.policies import Plan, Sampling, checks, packing
from workbench.policies.batching import micro_batches
from workbench.policies.decoding import (
    CachedDecoder,
    Drawn,
    Request,
    Wanted,
    respond_in_chunks,
    sample,
    uniforms_of,
)
from workbench.policies.lora import fuse
from workbench.policies.memory import BYTES
from workbench.policies.merged import MergedDecoder, is_plain, supports
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.validation import one_of, shown, whole_number

# Logits held at once in float32, 128 MiB. On an NVIDIA GPU, where larger operations pay, 512 MiB.
LOGIT_CHUNK = 2**25
LOGIT_CHUNK_ON_CUDA = 2**27
# How far two ways to compute the same in float32 may lie apart, relative to the largest number.
# Through the 30 layers of SmolLM2 it is 1e-4.
EXACT = 5e-4
ROUGH = 0.05  # the same where products have 16 bits
RESCORED = 16_384  # tokens of one forward pass over what another sampler has drawn


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
        Tokens that prompt and response may take together, at most the engine's limit. Default: that
        limit, or none.
    float32_head : bool
        Compute the logits of an update in float32. It costs a copy of the head's weights for as
        long as that takes.

    Attributes
    ----------
    layout : {"padded", "joined", "packed"}
        How the trainer lays out rows, see `Policy`. "packed" where the model allows it.
    autocast : bool
        Whether products are computed in bfloat16, also those with weights in float32. It is so on
        a GPU, and wherever the weights under a float32 adapter have 16 bits.
    """

    samples_apart = False
    """Whether another program than the trainer samples; an engine does."""

    share_prefixes = False
    """Whether what several responses to a prompt begin with is computed once for all of them.

    They are sampled as one row until they draw different tokens, and the tokens that they have in
    common are one path in the forward pass of an update. Draws, scores and gradients are the same
    up to float rounding. How much it saves depends on how alike the responses are. Of 24 responses
    of the tiny model to one problem a quarter of the work is left, while a large model's responses
    part after a few tokens. So seconds of runs that share prefixes say nothing about a large model.
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
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        self.rows = rows
        self.chunk = chunk
        self.float32_head = float32_head
        self.engine = engine
        self.max_length = max_length
        if engine is not None:
            self.max_length = min(max_length or engine.max_length, engine.max_length)
            self.samples_apart = True
        self.name = name or model.config.name_or_path
        # A LoRA model wraps the real one. Decoder and head are those inside, where the adapters are
        # in place.
        core = model if isinstance(model, PreTrainedModel) else model.get_base_model()
        self.decoder = core.get_decoder()
        self.head = core.get_output_embeddings()
        # Positions that are learnt, as those of GPT-2, end where the table of them does.
        if any(hasattr(self.decoder, name) for name in ("wpe", "embed_positions")):
            positions = core.config.max_position_embeddings
            self.max_length = min(self.max_length or positions, positions)
        if float32_head and not isinstance(self.head, torch.nn.Linear):
            raise ValueError(
                "float32_head=True: the head has an adapter of its own, whose logits have the "
                "precision of its weights; leave the head out of target_modules"
            )
        self.parameter_count = count_parameters(core)
        if self.device.type == "cpu":
            for module in filter(is_plain, self.decoder.modules()):
                fuse(module)
        # The tokens that end a response, ascending: the tokenizer's, and those the model names.
        named = model.generation_config.eos_token_id
        named = [] if named is None else np.atleast_1d(named).tolist()
        self.end_ids = sorted({tokenizer.eos_token_id, *named})
        self.buffers: dict[str, torch.Tensor] = {}  # memory that sampling uses again and again
        # peft keeps an adapter in float32. Without autocast its products would be computed in
        # float32 too, without the tensor cores of a GPU.
        precisions = {each.dtype for each in model.parameters() if each.is_floating_point()}
        self.autocast = self.device.type == "cuda" or len(precisions) > 1
        # Three trials on a few tokens: whether decoder and head alone give the model's logits,
        # without which nothing else here is right, and whether two faster ways of computing give
        # the same numbers.
        model.eval()
        self._check_logits()
        self.merges = engine is None and self._can_merge()
        self.layout = self._tried_layout(core)

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
        options
            Further arguments of the class.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        one_of("dtype", dtype, BYTES)
        template = options.get("template", "{prompt}")
        config, tokenizer = checks.load_configuration(path, revision, template)
        checks.check_quantised(config, lora)
        checks.check_length(config, (vllm or {}).get("max_length"))
        # Bytes a weight: itself, and where it is trained its gradient and Adam's two moments.
        trainer = BYTES[dtype] * (1 if lora else 4)
        if vllm is not None:
            # The engine starts before the model is loaded, as it takes a share of what is free.
            from workbench.policies.vllm import Engine

            merges = vllm.get("merges", False)
            checks.check_hand_over(lora or {}, merges)
            if merges and config.to_dict().get("quantization_config"):
                raise ValueError(
                    "hand_over='merged': the model is quantised, and its weights cannot hold what "
                    "an adapter adds; take hand_over='adapter'"
                )
            rank = lora.get("r", 8) if lora else None
            options["engine"] = Engine.start(
                path,
                revision=revision,
                lora_rank=rank,
                device=device,
                trainer=trainer,
                float32_head=options.get("float32_head", False),
                **vllm,
            )
        if str(device).startswith("cuda"):
            checks.check_memory(config, trainer=trainer)
        with checks.offline_hint(path), checks.quiet():
            model = AutoModelForCausalLM.from_pretrained(
                path,
                # The one that was checked: an adapter's directory would lead to another's.
                config=config,
                dtype=getattr(torch, dtype),
                revision=revision,
                trust_remote_code=False,
            )
        model.to(device)
        if gradient_checkpointing is None:
            gradient_checkpointing = str(device).startswith("cuda")
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if lora is not None:
            model = _with_lora(model, lora)
        return cls(model, tokenizer, name=str(path), **options)

    def __repr__(self) -> str:
        size = f"{self.parameter_count:,} parameters"
        return f"{type(self).__name__}({self.name!r}, {size}, on {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.head.weight.device

    # Sampling

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
        wanted = Wanted.of(prompts, counts, seed)
        owner = wanted.owner
        encoded = Ragged.of(self.encode([each.prompt for each in wanted.problems]), np.int32)
        self._check_lengths(wanted.problems, encoded, sampling)
        # The texts that responses go on from, and which of them each row has.
        starts, start_of = encoded, owner
        room = np.full(len(owner), sampling.max_new_tokens)
        asked = plan or Plan()
        self._check_plan(asked, len(owner))
        if asked.prefixes is not None:
            # Each different text of a prompt with its prefix once.
            whole = encoded.take(owner).then(asked.prefixes, np.int32)
            starts, start_of = whole.distinct()
            room -= asked.prefixes.lengths

        self.model.eval()
        if not len(owner):
            drawn = Drawn.empty(0, 1)
        elif self.engine is None:
            uniforms = uniforms_of(wanted.seeds, wanted.counts, sampling.max_new_tokens)
            rows = np.arange(len(owner))
            request = Request(self, sampling, asked, start_of, uniforms, room, rows)
            drawn = self._draw(starts, request)
        else:
            self.engine.update(self.model)
            texts = starts.take(start_of)
            seeds = wanted.seed_of_each
            if asked.stop is None:
                drawn = self.engine.respond(texts, seeds, sampling, self.end_ids, room).drawn()
            else:
                nothing = np.empty((len(owner), 0))
                rows = np.arange(len(owner))
                request = Request(self, sampling, asked, start_of, nothing, room, rows)
                drawn = respond_in_chunks(self.engine, texts, seeds, request, self.chunk)
            self.engine.rest()
        rollouts = self._rollouts(wanted, starts.take(start_of), drawn, asked.prefixes)
        if plan is not None:
            rollouts = rollouts.assign(stopped=drawn.stopped, lost=drawn.lost)
        return rollouts

    def _check_plan(self, plan: Plan, size: int) -> None:
        """ValueError for a plan that this policy cannot follow in a request of so many rows."""
        if plan.prefixes is not None and np.isin(plan.prefixes.values, self.end_ids).any():
            raise ValueError(
                "course: a prefix holds a token that ends responses; leave out the end of an old "
                "response"
            )
        if plan.stop is not None and self.engine is None and size > self.rows:
            raise ValueError(
                f"rows={self.rows}: a course that stops rollouts sees all of a request at once, "
                f"and this one has {size}; raise rows, or ask for fewer rollouts"
            )

    def comparable(self, sampling: Sampling) -> bool:
        """See `Policy.comparable`."""
        return self.engine is None or self.engine.comparable(sampling)

    def _draw(self, texts: Ragged, request: Request) -> Drawn:
        """A response to `texts[request.owner[i]]` for each row i of the request."""
        # Texts of like length go together, so that little is padded.
        order = np.argsort(texts.lengths[request.owner], kind="stable")
        parts = [
            self._draw_batch(texts, request.take(order[start : start + self.rows]))
            for start in range(0, len(order), self.rows)
        ]
        return Drawn.concat(parts).take(np.argsort(order))

    def _draw_batch(self, texts: Ragged, request: Request) -> Drawn:
        """As `_draw`, all rows at once."""
        # An architecture that is not known may keep tensors, which must stay ordinary ones.
        # The merged decoder has no hidden states of the model's own to show.
        merges = self.merges and not request.plan.states
        without_gradient = torch.inference_mode if merges else torch.no_grad
        # Merged weights choose the precision of each product themselves.
        precision = nullcontext() if merges else self._precision()
        with without_gradient(), precision:
            # Each distinct text is computed once for all its responses.
            distinct, text_of_row = np.unique(request.owner, return_inverse=True)
            decoder, logits = self._prefill(texts.take(distinct), merges)
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

    def _prefill(self, prompts: Ragged, merged: bool) -> tuple[Any, torch.Tensor]:
        """A decoder that holds the prompts (P rows), and the logits (P, V) of the next tokens."""
        ids, mask = self._left_padded(prompts)
        if merged:
            decoder = MergedDecoder(self)
            return decoder, decoder.begin(ids, mask)
        cache = DynamicCache(config=self.model.config)
        with self._precision():
            states = self.decoder(
                input_ids=ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            logits = self.head(states[:, -1])
        return CachedDecoder(self, cache, mask), logits

    def _left_padded(self, texts: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, with the newest token of every row in the last column."""
        ids = texts.padded(self._pad_id, side="left")
        # The mask of right padding, read backwards, is that of left padding.
        mask = texts.mask()[:, ::-1].copy()
        return tuple(torch.as_tensor(each, device=self.device).long() for each in (ids, mask))

    def check_prompts(self, problems: Iterable[Problem]) -> None:
        """Raise ValueError for a problem whose prompt the tokenizer cannot express."""
        unknown = self.tokenizer.unk_token_id
        # Most tokenizers of today know every byte and have no such token.
        if unknown is None:
            return
        problems = list(problems)
        for problem, ids in zip(problems, self.encode([each.prompt for each in problems])):
            if unknown not in ids:
                continue
            # Some tokenizers begin every text with the token that also stands for the unknown.
            lost = checks.lost_characters(self.tokenizer, problem.prompt)
            if lost:
                raise ValueError(
                    f"problems: the model's tokenizer cannot express {''.join(lost)!r} in the "
                    f"prompt of {problem.id!r}, {shown(problem.prompt)}; change the prompt, leave "
                    "the problem out, or take a model that knows it"
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
        # A chat template writes special tokens itself.
        return self.tokenizer(texts, add_special_tokens=not is_chat)["input_ids"]

    def ends(self, tokens: np.ndarray, stop: Sequence[str]) -> np.ndarray:
        """Which of the responses, by their newest tokens (R, t), end with the last one, (R,) bool.

        A stop string of more tokens than these is not found.
        """
        ended = np.isin(tokens[:, -1], self.end_ids)
        # A stop string may be spread over several tokens, so the newest ones are decoded together.
        if stop:
            tails = self.decode(tokens.tolist(), skip_special_tokens=False)
            ended |= np.array([any(text in tail for text in stop) for tail in tails], dtype=bool)
        return ended

    def _rollouts(
        self, wanted: Wanted, prompts: Ragged, drawn: Drawn, prefixes: Ragged | None
    ) -> Rollouts:
        response = Ragged.of_padded(drawn.tokens, drawn.lengths)
        tokens = [response[i].tolist() for i in range(len(response))]
        if prefixes is not None:
            tokens = [prefixes[i].tolist() + row for i, row in enumerate(tokens)]
        entropy = Ragged.of_padded(drawn.entropies, drawn.lengths)
        return Rollouts(
            **wanted.columns,
            prompt=prompts,
            response=response,
            old_logprobs=Ragged.of_padded(drawn.logprobs, drawn.lengths),
            text=np.array(self.decode(tokens), dtype=object),
            truncated=drawn.truncated,
            token_entropy=entropy,
            entropy=entropy.means(),
        )

    def decode(self, rows: list[list[int]], skip_special_tokens: bool = True) -> list[str]:
        """Each row of token ids as text."""
        decode = self.tokenizer.batch_decode
        if self.tokenizer.is_fast and not self.tokenizer.clean_up_tokenization_spaces:
            # What `batch_decode` asks of each row, asked of all rows at once.
            decode = self.tokenizer.backend_tokenizer.decode_batch
        return decode(rows, skip_special_tokens=skip_special_tokens)

    # Training

    @torch.no_grad()
    def rescored(self, rollouts: Rollouts, temperature: float = 1.0) -> Rollouts:
        """See `Policy.rescored`."""
        self.model.eval()
        logprobs = np.zeros(rollouts.response.mask().shape, dtype=np.float32)
        entropies = np.zeros_like(logprobs)
        everything = np.arange(len(rollouts))
        for rows in micro_batches(rollouts, everything, RESCORED, self.layout):
            of_rows, entropy = self.logprobs(rollouts.take(rows), temperature, entropy=True)
            logprobs[rows, : of_rows.shape[1]] = of_rows.float().cpu().numpy()
            entropies[rows, : entropy.shape[1]] = entropy.float().cpu().numpy()
        token_entropy = Ragged.of_padded(entropies, rollouts.lengths)
        return rollouts.assign(
            old_logprobs=Ragged.of_padded(logprobs, rollouts.lengths),
            token_entropy=token_entropy,
            entropy=token_entropy.means(),
        )

    def logprobs(
        self,
        rollouts: Rollouts,
        temperature: float = 1.0,
        entropy: bool = False,
        entropy_gradient: bool = True,
    ) -> Any:
        """Log-probabilities of the response tokens by a forward pass; see `Policy.logprobs`."""
        if not len(rollouts):
            empty = torch.zeros(0, 0, device=self.device)
            return (empty, empty) if entropy else empty
        # The token before predicts a token, so the first one of a response needs a prompt.
        if (rollouts.prompt.lengths == 0).any():
            raise ValueError("rollouts: a prompt has no tokens; every prompt needs at least one")
        mask = torch.as_tensor(rollouts.response.mask(), device=self.device)
        targets = torch.as_tensor(rollouts.response.values, device=self.device).long()
        chunk = max(1, logits_at_once(self.device) // self.head.weight.shape[0])
        # Greedy sampling reports the plain distribution, so temperature 0 scales nothing.
        scale = 1.0 / temperature if temperature > 0 else 1.0
        with self._precision():
            states, predicts = self._states_in(self.layout, rollouts)
            # The states of a chunk with the tokens that they predict. One chunk at least, so that a
            # table without tokens gives empty tensors.
            tokens = []
            pieces = []
            for start in range(0, max(len(states), 1), chunk):
                of_chunk = (predicts >= start) & (predicts < start + chunk)
                tokens.append(of_chunk.nonzero()[:, 0])
                piece = self._token_logprobs(
                    states[start : start + chunk],
                    predicts[tokens[-1]] - start,
                    targets[tokens[-1]],
                    scale,
                    recompute=len(states) > chunk,
                    entropy_gradient=entropy_gradient,
                )
                pieces.append(piece)
        rank = torch.cat(tokens).argsort()  # of each token among those of all chunks

        # The mask is True at response tokens in the order of the rows, so scattering the flat
        # values puts each at its place (R, T), with 0 beyond the ends.
        def padded(values: Sequence[torch.Tensor]) -> torch.Tensor:
            empty = torch.zeros(mask.shape, device=self.device)
            return empty.masked_scatter(mask, torch.cat(values)[rank])

        logprobs, entropies = zip(*pieces)
        return (padded(logprobs), padded(entropies)) if entropy else padded(logprobs)

    def _states_in(self, layout: str, rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
        """Final hidden states at positions that predict response tokens, (K, H), and for each
        response token of all rows, end to end, which of the states predicts it, (M,).
        """
        if layout == "packed":
            packed = packing.pack(rollouts, self.device, self.share_prefixes)
            states = self.decoder(
                input_ids=packed.ids[None],
                position_ids=packed.positions[None],
                # An attention mask of four dimensions tells transformers to make none.
                attention_mask=torch.zeros(1, 1, 1, 1, device=self.device),
                use_cache=False,
                packing=packed,
            ).last_hidden_state[0]
            return states.index_select(0, packed.predictors), packed.predicts
        prompts = rollouts.prompt.lengths
        ends = prompts + rollouts.lengths
        # Rows are padded on the right, where a causal model cannot see them.
        ids = rollouts.prompt.then(rollouts.response, np.int64).padded(self._pad_id)
        states = self._states(torch.as_tensor(ids, device=self.device))
        place = np.arange(ids.shape[1])
        # Place t predicts the token at t + 1: from the prompt's last token to the one before the
        # end.
        predicts = (place >= prompts[:, None] - 1) & (place < ends[:, None] - 1)
        found = states[torch.as_tensor(predicts, device=self.device)]
        return found, torch.arange(len(found), device=self.device)

    def _states(self, ids: torch.Tensor) -> torch.Tensor:
        """Final hidden states (R, T, H) of token ids (R, T)."""
        return self.decoder(input_ids=ids, use_cache=False).last_hidden_state

    def _precision(self) -> AbstractContextManager:
        """The context of every forward pass of the model's own modules."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def _token_logprobs(
        self,
        states: torch.Tensor,
        predicts: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        *,
        recompute: bool,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of a chunk of tokens, (N,) each.

        `predicts` (N,) says which of the states (K, H) predicts each of the targets (N,). With
        `recompute` the logits are computed again in the backward pass.
        """

        def score(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self._logits(states)
            logprobs = torch.log_softmax(logits if scale == 1 else logits * scale, dim=-1)
            # Without a gradient the entropy is only measured, and autograd keeps nothing for it.
            with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
                weighed = logprobs.exp()
                # In place where that is allowed, since fresh memory costs as much as the product.
                weighed = weighed * logprobs if weighed.requires_grad else weighed.mul_(logprobs)
                entropies = -weighed.sum(-1)
            return logprobs[predicts, targets], entropies[predicts]

        return checkpoint(score, states, use_reentrant=False) if recompute else score(states)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (N, V) in float32 of final hidden states (N, H).

        They are computed in the precision of the head unless `float32_head` asks for more.
        """
        if not self.float32_head:
            return self.head(states).float()
        bias = None if self.head.bias is None else self.head.bias.float()
        with torch.autocast(self.device.type, enabled=False):
            return linear(states.float(), self.head.weight.float(), bias)

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
        # A reference never samples, so it needs neither the engine nor the sampler's scratch
        # memory.
        alone.engine = None
        alone.buffers = {}
        reference = copy.deepcopy(alone)
        reference.model.eval()
        return reference

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name."""
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def parameters(self) -> list[torch.nn.Parameter]:
        """The trainable parameters."""
        return list(self._trained().values())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Name to tensor of the trainable parameters, detached copies on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self._trained().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the trainable parameters; names and shapes must match exactly."""
        own = self._trained()
        if own.keys() != state.keys():
            unmatched = sorted(own.keys() ^ state.keys())
            raise ValueError(f"state: parameter names differ, as {unmatched[0]}")
        with torch.no_grad():
            for name, parameter in own.items():
                # Copying alone would repeat what is too small.
                if state[name].shape != parameter.shape:
                    shapes = tuple(state[name].shape), tuple(parameter.shape)
                    raise ValueError(f"state: {name} has the shape {shapes[0]}, not {shapes[1]}")
                parameter.copy_(state[name])

    def save(self, path: Any) -> None:
        """Write the model, with LoRA its adapter, and the tokenizer to a directory."""
        with checks.quiet():
            self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)

    @property
    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.end_ids[0] if pad is None else pad

    # Checks

    @torch.no_grad()
    def _check_logits(self) -> None:
        """Raise ValueError for a model that rescales or caps its logits after the head.

        Log-probabilities are computed from the head alone and would be wrong.
        """
        ids = torch.tensor([[self.end_ids[0]] * 2], device=self.device)
        with self._precision():
            # The tolerance leaves room for bfloat16. A scale or a cap on the logits differs by far
            # more.
            own = self.head(self._states(ids)).float()
            expected = self.model(input_ids=ids).logits.float()
        if not torch.allclose(own, expected, atol=1e-2, rtol=1e-2):
            raise ValueError(
                f"model: {type(self.model).__name__} changes its logits after the head, which is "
                "not supported"
            )

    @torch.no_grad()
    def _can_merge(self) -> bool:
        """Whether merged weights compute what the model computes, tried on two short prompts."""
        if not supports(self):
            return False
        # Any six tokens will do that are not special ones, whose states may be so large that what
        # two precisions make of them has little in common.
        tokens = np.linspace(0, len(self.head.weight), 8)[1:-1].astype(np.int32).tolist()
        prompts = Ragged.of([tokens[:1], tokens[1:4]], np.int32)
        newest = torch.tensor(tokens[4:], device=self.device)
        plain, expected = self._prefill(prompts, merged=False)
        merged, first = self._prefill(prompts, merged=True)
        if not self._is_close(first, expected.float()):
            return False
        merged.spread(np.arange(2))
        with self._precision():
            expected = plain.advance(newest).float()
        return self._is_close(merged.advance(newest), expected)

    def _is_close(self, numbers: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether numbers that were computed in two ways differ by rounding only."""
        # Relative to the largest one, since single numbers near 0 say nothing about the precision.
        exact = self.head.weight.dtype == torch.float32 and not self.autocast
        tolerance = (EXACT if exact else ROUGH) * expected.abs().max().item()
        return torch.allclose(numbers, expected, atol=tolerance, rtol=0)

    def _tried_layout(self, core: Any) -> str:
        """The fastest layout of rows in which the model computes the same as with padding.

        Where that is "packed", the attention function of the model stays the one that knows packed
        rows; it is the usual one for everything else.
        """
        if not packing.supports(core):
            return "padded"
        padded = self._tried_states("padded")
        core.set_attn_implementation(packing.NAME)
        packed = self._tried_states("packed")
        if self._is_close(packed, padded):
            return "packed"
        # It was `sdpa` before, or the packed one through an earlier policy of the same model; see
        # `packing.supports`.
        core.set_attn_implementation("sdpa")
        return "padded"

    @torch.no_grad()
    def _tried_states(self, layout: str) -> torch.Tensor:
        """The state that predicts each response token of three short rollouts, (M, H) float32.

        Two of them share a prompt and the third has its own, with responses of 4, 1 and 2 tokens,
        so shared prompts, single tokens and padding are all tried. Two different tokens are needed,
        or a mix-up of places would not show.
        """
        end = self.end_ids[0]
        other = 0 if end else 1
        rollouts = Rollouts(
            problem=np.array(["a", "a", "b"]),
            prompt=Ragged.of([[end, other], [end, other], [other]], np.int32),
            response=Ragged.of([[other, end, other, end], [other], [end, other]], np.int32),
        )
        with self._precision():
            states, predicts = self._states_in(layout, rollouts)
        return states[predicts].float()

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
            f"{encoded.lengths[longest]} tokens and its response may have "
            f"{sampling.max_new_tokens}; raise it, or lower sampling.max_new_tokens"
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


def _with_lora(model: Any, lora: Mapping[str, Any]) -> Any:
    """The model with a fresh adapter, which is the same whatever was drawn before."""
    checks.check_packages("peft")
    from peft import LoraConfig, get_peft_model

    # peft draws the adapter from the global generator. A seed of its own gives all runs the same
    # start, and the fork leaves the generator as it was.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


def count_parameters(model: torch.nn.Module) -> int:
    """How many weights a model has.

    A weight that two layers share counts once. bitsandbytes packs several weights of 4 bits into
    each entry of a tensor; here they count one by one, by the shape that the tensor stands for.
    transformers knows that shape only of models that it has loaded itself.
    """
    total = 0
    for parameter in model.parameters():
        packed = getattr(parameter, "quant_state", None)
        total += parameter.numel() if packed is None else math.prod(packed.shape)
    return total


def logits_at_once(device: torch.device) -> int:
    """Logits that a training step holds at once."""
    return LOGIT_CHUNK_ON_CUDA if device.type == "cuda" else LOGIT_CHUNK
