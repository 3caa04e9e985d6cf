"""A causal language model as it is trained: log-probabilities with a gradient, states and weights.

Rows are computed end to end, with what a group has in common only once (`packing.py`), where the
model allows that, and padded otherwise. Log-probabilities are computed at response positions only
and, for large vocabularies, in recomputed chunks, so that no (R, T, V) tensor is ever held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from workbench.policies import checks, packing
from workbench.policies.batching import micro_batches
from workbench.policies.lora import fuse
from workbench.policies.merged import is_plain
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.machine import torch_threads
from workbench.utils.seeding import generator

# Logits held at once in float32, 128 MiB. On an NVIDIA GPU, where larger operations pay, 512 MiB.
LOGIT_CHUNK = 2**25
LOGIT_CHUNK_ON_CUDA = 2**27
# How far two ways to compute the same in float32 may lie apart, relative to the largest number.
# Through the 30 layers of SmolLM2 it is 1e-4.
EXACT = 5e-4
ROUGH = 0.05  # the same where products have 16 bits
RESCORED = 16_384  # tokens of one forward pass over what another sampler has drawn
# What a trial of layouts and decoders may cost, in FLOPs of one forward pass: some tenths of a
# second.
TRIAL_FLOPS = 2e10
TRIAL_FLOPS_ON_CUDA = 1e14
LONGEST_TRIAL = 2**17  # tokens, where the model has no limit


def on_its_threads(method: Callable[..., Any]) -> Any:
    """A method of a policy, which computes on the policy's threads and gives torch its own back."""

    @wraps(method)
    def computed(self: Any, *arguments: Any, **options: Any) -> Any:
        with torch_threads(self.threads):
            return method(self, *arguments, **options)

    return computed


class TrainableModel:
    """A causal language model of transformers with its tokenizer, as an update computes with it.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
    tokenizer : transformers.PreTrainedTokenizerBase
    float32_head : bool
        Compute the logits of an update in float32. It costs a copy of the head's weights for as
        long as that takes.

    Attributes
    ----------
    layout : {"padded", "joined", "packed"}
        How the trainer lays out rows, see `Policy`. "packed" where the model allows it.
    end_ids : list of int
        The tokens that end a response, ascending: the tokenizer's, and those the model names.
    never : (n,) int64 tensor, optional
        Rows of the embedding that stand for no token of the tokenizer, so that they are not drawn.
        Embeddings are rounded up to a handy size.
    autocast : bool
        Whether products are computed in bfloat16, also those with weights in float32. It is so on
        a GPU, and wherever the weights under a float32 adapter have 16 bits.
    """

    share_prefixes = False
    """Whether what several responses to a prompt begin with is computed once for all of them.

    They are sampled as one row until they draw different tokens, and the tokens that they have in
    common are one path in the forward pass of an update. Draws, scores and gradients are the same
    up to float rounding. How much it saves depends on how alike the responses are. Of 24 responses
    of the tiny model to one problem a quarter of the work is left, while a large model's responses
    part after a few tokens. So seconds of runs that share prefixes say nothing about a large model.
    """

    threads: int | None = None
    """Of torch, while this policy computes; None for those that torch has."""

    max_length: int | None = None
    """Tokens that prompt and response may take together; None without a limit."""

    def __init__(self, model: Any, tokenizer: Any, float32_head: bool = False) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.float32_head = float32_head
        # A LoRA model wraps the real one. Decoder and head are those inside, where the adapters are
        # in place.
        core = model if isinstance(model, PreTrainedModel) else model.get_base_model()
        found = core.get_decoder()
        # Llama 4 names none of its own.
        self.decoder = core.model if found is core else found
        self.head = core.get_output_embeddings()
        self._factor, self._cap = checks.after_head(core.config.get_text_config())
        if float32_head and not isinstance(self.head, torch.nn.Linear):
            raise ValueError(
                "float32_head=True: the head has an adapter; leave it out of target_modules"
            )
        self.parameter_count = count_parameters(core)
        if self.device.type == "cpu":
            for module in filter(is_plain, self.decoder.modules()):
                fuse(module)
        named = model.generation_config.eos_token_id
        named = [] if named is None else np.atleast_1d(named).tolist()
        self.end_ids = sorted({tokenizer.eos_token_id, *named})
        known = np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64)
        beyond = np.setdiff1d(np.arange(len(self.head.weight)), known)
        self.never = torch.as_tensor(beyond, device=self.device) if len(beyond) else None
        # peft keeps an adapter in float32. Without autocast its products would be computed in
        # float32 too, without the tensor cores of a GPU.
        precisions = {each.dtype for each in model.parameters() if each.is_floating_point()}
        self.autocast = self.device.type == "cuda" or len(precisions) > 1
        # Two trials on a few tokens: whether decoder and head alone give the model's logits,
        # without which nothing else here is right, and whether packed rows give the same numbers.
        model.eval()
        self._check_logits(core)
        self.layout = self._tried_layout(core)

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.head.weight.device

    @on_its_threads
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

    @on_its_threads
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

        def score(
            states: torch.Tensor, predicts: torch.Tensor, targets: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Log-probabilities and entropies (N,) of targets; state predicts[i] predicts each."""
            logits = self._logits(states)
            logprobs = torch.log_softmax(logits if scale == 1 else logits * scale, dim=-1)
            # Without a gradient the entropy is only measured, and autograd keeps nothing for it.
            with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
                weighed = logprobs.exp()
                # In place where that is allowed, since fresh memory costs as much as the product.
                weighed = weighed * logprobs if weighed.requires_grad else weighed.mul_(logprobs)
                entropies = -weighed.sum(-1)
            return logprobs[predicts, targets], entropies[predicts]

        with self._precision():
            states, predicts = self._states_in(self.layout, rollouts)
            # Where there are several chunks, their logits are computed again in the backward pass.
            if len(states) > chunk:
                score = partial(checkpoint, score, use_reentrant=False)
            # The states of a chunk with the tokens that they predict. One chunk at least, so that a
            # table without tokens gives empty tensors.
            tokens = []
            pieces = []
            for start in range(0, max(len(states), 1), chunk):
                of_chunk = (predicts >= start) & (predicts < start + chunk)
                index = of_chunk.nonzero()[:, 0]
                tokens.append(index)
                part = states[start : start + chunk]
                pieces.append(score(part, predicts[index] - start, targets[index]))
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

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (N, V) in float32 of final hidden states (N, H).

        They are computed in the precision of the head unless `float32_head` asks for more.
        """
        if not self.float32_head:
            return self.sampled_logits(states).float()
        bias = None if self.head.bias is None else self.head.bias.float()
        with torch.autocast(self.device.type, enabled=False):
            return self._after_head(linear(states.float(), self.head.weight.float(), bias))

    def sampled_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of final hidden states (..., H), in the precision of the head."""
        return self._after_head(self.head(states))

    def _after_head(self, logits: torch.Tensor) -> torch.Tensor:
        """What the model makes of the logits that come out of its head."""
        if self._factor != 1:
            logits = logits * self._factor
        return logits if self._cap is None else self._cap * (logits / self._cap).tanh()

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
            unmatched = min(own.keys() ^ state.keys())
            raise ValueError(f"state: parameter names differ, as {unmatched}")
        with torch.no_grad():
            for name, parameter in own.items():
                # Copying alone would repeat what is too small.
                if state[name].shape != parameter.shape:
                    raise ValueError(f"state: {name} has another shape, {state[name].shape}")
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

    # Trials on a few tokens

    @torch.no_grad()
    def _check_logits(self, core: Any) -> None:
        """Raise ValueError for a model that rescales or caps its logits after the head.

        Log-probabilities are computed from the head alone and would be wrong.
        """
        ids = torch.tensor([[self.end_ids[0]] * 2], device=self.device)
        with self._precision():
            # The tolerance leaves room for bfloat16. A scale or a cap on the logits differs by far
            # more.
            own = self.sampled_logits(self._states(ids)).float()
            expected = self.model(input_ids=ids).logits.float()
        if not expected.isfinite().all():
            raise ValueError(f"model={core.config.name_or_path!r}: its logits are not finite")
        if not torch.allclose(own, expected, atol=1e-2, rtol=1e-2):
            kind = type(core).__name__
            raise ValueError(
                f"model: {kind} changes its logits after the head in a way that is not known here"
            )

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
        rollouts = self._trial()
        padded = self._tried_states("padded", rollouts)
        core.set_attn_implementation(packing.NAME)
        packed = self._tried_states("packed", rollouts)
        if self._is_close(packed, padded):
            return "packed"
        # It was `sdpa` before, or the packed one through an earlier policy of the same model; see
        # `packing.supports`.
        core.set_attn_implementation("sdpa")
        return "padded"

    @torch.no_grad()
    def _tried_states(self, layout: str, rollouts: Rollouts) -> torch.Tensor:
        """The state that predicts each response token of some rollouts, (M, H) float32."""
        with self._precision():
            states, predicts = self._states_in(layout, rollouts)
        return states[predicts].float()

    def _trial(self) -> Rollouts:
        """A rollout of a long prompt between two of a short one, of ordinary tokens.

        The long one goes beyond every window of the model, unless that would take long.
        """
        longest = max(1, (self.max_length or LONGEST_TRIAL) - 3)
        flops = TRIAL_FLOPS_ON_CUDA if self.device.type == "cuda" else TRIAL_FLOPS
        affordable = flops / (2 * self.parameter_count)
        windows = [each + 2 for each in checks.windows(self.model.config)]
        length = max([8, *(each for each in windows if each <= min(longest, affordable))])
        # Special tokens, whose states may be so large that what two precisions make of them has
        # little in common, stand at the ends of vocabularies.
        size = len(self.head.weight)
        rng = generator(0, "trial")
        short, long, *responses = (
            rng.integers(size // 8, size - size // 8, n) for n in (2, min(length, longest), 3, 3, 3)
        )
        return Rollouts(
            problem=np.array(["a", "b", "a"]),
            prompt=Ragged.of([short, long, short], np.int32),
            response=Ragged.of(responses, np.int32),
        )


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
