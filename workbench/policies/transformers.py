"""Any Hugging Face causal language model as a policy, full-parameter or LoRA.

Sampling is a batched loop on the public cache API: each prompt is prefilled once for all its responses, and rows that
have ended leave the batch. It was chosen over `generate` by measurement (`tests/bench/test_bench_sampling.py`).
Log-probabilities are computed at response positions only and, for large vocabularies, in recomputed chunks, so that
no (R, T, V) tensor is ever held. With an engine (`policies/vllm.py`) the loop is that engine's.
"""

import copy
from contextlib import nullcontext

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache

from workbench.grpo import micro_batches
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
from workbench.policies.decoding import State, draw_tokens, no_samples
from workbench.problems import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.seeding import derive, generator

LOGIT_CHUNK = 2**24  # logits held at once: 64 MiB in float32
KEEP_SHARE = (
    0.85  # the sampling batch is compacted when fewer of its rows than this are still going
)
RESCORED = (
    16_384  # tokens of one forward pass over what another sampler has drawn, padding included
)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class TransformersPolicy:
    """A causal LM from transformers with its tokenizer.

    template: `str.format` pattern around the problem's text ("{prompt}"), or "chat" for the tokenizer's chat template.
    rows: responses sampled in one batch at most (memory). engine: a `policies.vllm.Engine` that samples instead.
    max_length: tokens that prompt and response may take together, None for the engine's limit or none.
    """

    def __init__(
        self,
        model,
        tokenizer,
        *,
        template="{prompt}",
        rows=1024,
        name=None,
        engine=None,
        max_length=None,
    ):
        check_template(template, tokenizer)
        check_tokenizer(tokenizer, model.get_input_embeddings().weight.shape[0])
        self.model, self.tokenizer = model, tokenizer
        self.template, self.rows, self.engine = template, rows, engine
        self.max_length = max_length or (engine.max_length if engine else None)
        self.name = name or model.config.name_or_path
        core = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.decoder, self.head = core.get_decoder(), core.get_output_embeddings()
        self.parameter_count = core.num_parameters()
        self.end_ids = sorted(
            {tokenizer.eos_token_id, *_as_list(model.generation_config.eos_token_id)}
        )
        self._check_logits()

    @classmethod
    def from_pretrained(
        cls, path, *, lora=None, dtype="float32", device=None, revision=None, vllm=None, **options
    ):
        """Loads `path`, a directory or a hub name.

        lora: None for full-parameter training, else keyword arguments of `peft.LoraConfig`, as
            `dict(r=64, lora_alpha=64, target_modules="all-linear")`; device: default cuda where there is one. vllm: None,
            or keyword arguments of `policies.vllm.Engine.start` for a sampler of that kind.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        config, tokenizer = load_configuration(path, revision, options.get("template", "{prompt}"))
        check_quantised(config, lora)
        check_length(config, (vllm or {}).get("max_length"))
        trainer = BYTES[dtype] * (
            1 if lora else 4
        )  # weights; gradient and two moments where they are trained
        if vllm is not None:  # before the trainer: it takes its share of what is free
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
    def device(self):
        """Where the model lies."""
        return self.head.weight.device

    # sampling

    @torch.no_grad()
    def generate(self, prompts, counts, sampling, seed):
        """Sample `counts[i]` responses to `prompts[i]`; see `Policy.generate`.

        Every response draws one uniform number a token from a generator derived from its prompt's seed, and takes the
        token by inverse cumulative distribution: its draws do not depend on the rest of the batch. Where another sampler
        draws, log-probabilities and entropies are the trainer's, and the further column `sampler_gap` (R,) is the mean
        over tokens of |sampler's log-probability - trainer's|, NaN where the two are not of the same distribution.
        """
        problems = [
            p if isinstance(p, Problem) else Problem(str(i), p, "") for i, p in enumerate(prompts)
        ]
        counts = self._check_counts(counts, len(problems))
        seeds = [derive(seed, i) for i in range(len(problems))] if np.ndim(seed) == 0 else seed
        encoded = Ragged.of(self.encode([p.prompt for p in problems]), np.int32)
        self._check_lengths(problems, encoded, sampling)
        owner = np.repeat(np.arange(len(problems)), counts)
        draw = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.model.eval()
        if self.engine is None:
            columns = self._draw_all(encoded, owner, counts, seeds, sampling)
        else:
            columns = self._ask_engine(encoded, owner, draw, seeds, sampling)
        rollouts = self._rollouts(problems, encoded, owner, draw, *columns)
        return self._rescored(rollouts, sampling) if self._samples_apart else rollouts

    @property
    def _samples_apart(self):
        """Whether what samples computes otherwise than what is trained."""
        return self.engine is not None

    def _draw_all(self, encoded, owner, counts, seeds, sampling):
        uniforms = [
            generator(s, "tokens").random((n, sampling.max_new_tokens))
            for s, n in zip(seeds, counts)
        ]
        uniforms = (
            np.concatenate(uniforms) if len(uniforms) else np.empty((0, sampling.max_new_tokens))
        )
        parts = [
            self._sample(encoded, owner[i : i + self.rows], uniforms[i : i + self.rows], sampling)
            for i in range(0, len(owner), self.rows)
        ]
        return [np.concatenate(column) for column in zip(*parts)] if parts else no_samples()

    def _ask_engine(self, encoded, owner, draw, seeds, sampling):
        if not len(owner):
            return no_samples()
        self.engine.update(self.model)
        seeds = [derive(int(seeds[i]), "response", int(j)) for i, j in zip(owner, draw)]
        return self.engine.respond(encoded.take(owner), seeds, sampling, self.end_ids)

    def encode(self, prompts):
        """Token ids of each prompt inside the template, a list of lists."""
        if self.template == "chat":
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            return [
                self.tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False)
                for c in chats
            ]
        return self.tokenizer([self.template.format(prompt=prompt) for prompt in prompts])[
            "input_ids"
        ]

    def _sample(self, prompts, owner, uniforms, sampling):
        """Tokens (R, T), their log-probabilities (R, T), lengths (R,), mean entropies (R,), truncated (R,)."""
        rows, width = uniforms.shape
        tokens = np.zeros((rows, width), dtype=np.int32)
        logprobs = np.zeros((rows, width), dtype=np.float32)
        entropies, lengths, ended = (
            np.zeros(rows),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=bool),
        )
        logits, state = self._prefill(prompts, owner)
        uniforms = torch.as_tensor(uniforms, device=self.device)
        batch = np.arange(rows)  # the rollouts still in the batch
        for step in range(width):
            chosen, logprob, entropy = draw_tokens(logits.float(), uniforms[batch, step], sampling)
            going = ~ended[batch]
            alive = batch[going]
            tokens[alive, step], logprobs[alive, step] = (
                chosen.cpu().numpy()[going],
                logprob.cpu().numpy()[going],
            )
            entropies[alive] += entropy.cpu().numpy()[going]
            lengths[alive] += 1
            ended[alive] = self._ends(tokens[alive, : step + 1], sampling.stop)
            going = ~ended[batch]
            if not going.any() or step + 1 == width:
                break
            if going.mean() < KEEP_SHARE:
                kept = torch.as_tensor(np.flatnonzero(going), device=self.device)
                batch, chosen = batch[going], chosen[kept]
                state.keep(kept)
            logits = self._advance(chosen, state)
        return tokens, logprobs, lengths, entropies / lengths, ~ended

    def _prefill(self, prompts, owner):
        """Next-token logits (R, V) and the decoding state, each distinct prompt computed once."""
        distinct, inverse = np.unique(owner, return_inverse=True)
        prompts = prompts.take(distinct)
        ids = torch.as_tensor(prompts.padded(self._pad_id, side="left"), device=self.device).long()
        mask = torch.as_tensor(prompts.mask()[:, ::-1].copy(), device=self.device).long()
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        hidden = self.decoder(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        state, spread = (
            State(cache, mask, mask.sum(1)),
            torch.as_tensor(inverse, device=self.device),
        )
        state.keep(spread)
        return self.head(hidden)[spread], state

    def _advance(self, tokens, state):
        """Logits (R, V) after one more token in every row."""
        state.mask = torch.nn.functional.pad(state.mask, (0, 1), value=1)
        out = self.decoder(
            input_ids=tokens[:, None],
            attention_mask=state.mask,
            position_ids=state.positions[:, None],
            past_key_values=state.cache,
            use_cache=True,
        )
        state.positions = state.positions + 1
        return self.head(out.last_hidden_state[:, -1])

    def _ends(self, tokens, stop):
        """Which of the rows (R, t) end with their newest token, (R,) bool."""
        ended = np.isin(tokens[:, -1], self.end_ids)
        if stop:
            tails = self.tokenizer.batch_decode(tokens[:, -32:])
            ended |= np.array([any(s in tail for s in stop) for tail in tails], dtype=bool)
        return ended

    def _rollouts(
        self, problems, encoded, owner, draw, tokens, logprobs, lengths, entropies, truncated
    ):
        response = Ragged.of_padded(tokens, lengths)
        of = lambda name, dtype: np.array([getattr(p, name) for p in problems], dtype=dtype)[owner]  # noqa: E731
        return Rollouts(
            problem=of("id", str),
            level=of("level", np.int64),
            answer=of("answer", object),
            prompt=encoded.take(owner),
            response=response,
            old_logprobs=Ragged.of_padded(logprobs, lengths),
            text=self._decode(response),
            draw=draw,
            truncated=truncated,
            entropy=entropies,
        )

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

    def _decode(self, response):
        texts = np.full(len(response), "", dtype=object)
        if len(response):
            rows = [response[i].tolist() for i in range(len(response))]
            texts[:] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts

    # training

    def logprobs(self, rollouts, temperature=1.0, entropy=False):
        """Log-probabilities of the response tokens by a fresh forward pass; see `Policy.logprobs`.

        Rows are padded on the right, where a causal model cannot see them, so no attention mask is needed.
        """
        mask = torch.as_tensor(rollouts.response.mask(), device=self.device)
        targets = torch.as_tensor(rollouts.response.values, device=self.device).long()
        chunk = max(1, LOGIT_CHUNK // self.head.weight.shape[0])
        scale = 1.0 / temperature if temperature > 0 else 1.0
        with self._precision():
            hidden = self._response_states(rollouts)
            pieces = [
                self._token_logprobs(
                    hidden[i : i + chunk], targets[i : i + chunk], scale, len(targets) > chunk
                )
                for i in range(0, len(targets), chunk)
            ]
        out = [
            torch.zeros(mask.shape, device=self.device).masked_scatter(mask, torch.cat(p))
            for p in zip(*pieces)
        ]
        return tuple(out) if entropy else out[0]

    def _response_states(self, rollouts):
        """Final hidden states at the positions that predict response tokens, (N, H), rows end to end."""
        prompts, responses = rollouts.prompt.lengths, rollouts.response.lengths
        rows = [
            np.concatenate([rollouts.prompt[i], rollouts.response[i]]) for i in range(len(rollouts))
        ]
        ids = torch.as_tensor(Ragged.of(rows, np.int64).padded(self._pad_id), device=self.device)
        hidden = self._states(ids)
        place = np.arange(ids.shape[1])
        predicts = (place >= prompts[:, None] - 1) & (place < (prompts + responses)[:, None] - 1)
        return hidden[torch.as_tensor(predicts, device=self.device)]

    def _states(self, ids):
        """Final hidden states (R, T, H) of token ids (R, T)."""
        return self.decoder(input_ids=ids, use_cache=False).last_hidden_state

    def _precision(self):
        """The context of every forward pass of the trainer."""
        return nullcontext()

    def _token_logprobs(self, hidden, targets, scale, recompute):
        """Log-probabilities and entropies of a chunk of tokens, (N,) each; logits are recomputed in the backward pass."""

        def score(states):
            logits = torch.log_softmax(self.head(states).float() * scale, dim=-1)
            return logits.gather(1, targets[:, None])[:, 0], -(logits.exp() * logits).sum(-1)

        return checkpoint(score, hidden, use_reentrant=False) if recompute else score(hidden)

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

    def _check_lengths(self, problems, encoded, sampling):
        lengths = encoded.lengths + sampling.max_new_tokens
        if self.max_length is not None and len(lengths) and lengths.max() > self.max_length:
            i = int(lengths.argmax())
            raise ValueError(
                f"max_length={self.max_length}: problem {problems[i].id!r} has {encoded.lengths[i]} tokens and its "
                f"response may have {sampling.max_new_tokens}; raise it, or lower sampling.max_new_tokens"
            )

    @staticmethod
    def _check_counts(counts, prompts):
        counts = np.asarray(counts, dtype=np.int64)
        if counts.shape != (prompts,):
            raise ValueError(
                f"counts has shape {counts.shape}: one count for each of the {prompts} prompts is needed"
            )
        if (counts < 0).any():
            raise ValueError(f"counts={counts.tolist()}: counts cannot be negative")
        return counts


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


def _as_list(ids):
    return [] if ids is None else list(ids) if isinstance(ids, (list, tuple)) else [ids]
