"""LoRA by Unsloth on one GPU, sampled by vLLM on the same weights, or by Unsloth's own `generate`.

Unsloth's kernels for sampling and for training differ in the last digits of bfloat16, so this
policy samples apart (`Policy.samples_apart`), and its old log-probabilities are made the trainer's
by a forward pass over what was drawn.

Unsloth replaces parts of transformers and peft, so import this module before them. Later it works,
with a warning from Unsloth and without some of its speed. On a CPU (device="cpu") Unsloth 2026.10.9
and later have a backend that computes in float32 and has no vLLM. Unsloth takes PyTorch's own
attention where xformers is built for another CUDA than torch.

On a GPU the trainer computes rows end to end: Unsloth's attention takes the lengths of the rows
(`packed_seq_lengths`), as Unsloth's own GRPO passes them. The policy tries it when it is made.
Prompts are not shared: see `UnslothPolicy.layout`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from workbench.policies import checks

checks.check_packages("unsloth", "unsloth_zoo", "peft")
# Unsloth would download a file from the hub at every load, to count its users.
os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
from unsloth import FastLanguageModel  # noqa: E402

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from workbench.policies import packing  # noqa: E402
from workbench.policies.decoding import (  # noqa: E402
    LOGPROBS_OF_MARGINS,
    CachedDecoder,
    Request,
    Samples,
    draw_tokens,
    signals_of,
)
from workbench.policies.transformers import TransformersPolicy  # noqa: E402
from workbench.policies.vllm import Engine, make_room  # noqa: E402
from workbench.rollouts import Ragged, Rollouts  # noqa: E402

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Architectures whose attention in Unsloth reads the lengths of rows that stand end to end.
JOINED = ("llama", "mistral", "qwen2", "qwen3")
# Loaded with vLLM in this process: arguments -> model, tokenizer, engine and first adapter.
_SERVED: dict[tuple, tuple] = {}


class UnslothPolicy(TransformersPolicy):
    """A causal language model with a LoRA adapter by Unsloth on all seven projections of every
    layer.

    Parameters
    ----------
    model : peft.PeftModel
        Made by Unsloth.
    tokenizer : transformers.PreTrainedTokenizerBase
    options
        Further arguments of `TransformersPolicy`.

    Attributes
    ----------
    layout : {"padded", "joined"}
        "joined" where the trainer computes rows end to end, without padding, each with its prompt.
        No prompt is shared: Unsloth's attention for shared prompts is under the AGPL-3.0, and
        Unsloth itself switches it off where vLLM samples.
    """

    samples_apart = True

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        # A model's own settings, such as a repetition penalty, would bend the distribution.
        plain = GenerationConfig(eos_token_id=self.end_ids, pad_token_id=self._pad_id)
        model.generation_config = plain
        model.get_base_model().generation_config = plain

    @classmethod
    def from_pretrained(
        cls,
        path: Any,
        *,
        lora_rank: int = 64,
        load_in_4bit: bool = False,
        max_length: int = 1024,
        fast_inference: bool = True,
        gpu_memory_utilization: float = 0.5,
        float32_head: bool = False,
        device: str | None = None,
        revision: str | None = None,
        rows: int = 256,
        chunk: int = 32,
        **options: Any,
    ) -> UnslothPolicy:
        """Load a model from a directory or from the hub, with a fresh adapter.

        vLLM computes with the trainer's own weights here, so the two end together, with their
        process. With the same arguments a process therefore gets the same model again, its adapter
        set back to where it began, under policies made earlier too.

        Parameters
        ----------
        path : str or path
            This very repository is loaded: Unsloth's own copies of known models are not taken.
        lora_rank : int
            Rank and alpha of the adapter.
        load_in_4bit : bool
        max_length : int
            Tokens of prompt and response.
        fast_inference : bool
            Sample by vLLM, which shares the base weights.
        gpu_memory_utilization : float
            Share of the GPU's memory for the weights and for vLLM's cache. The rest is the
            trainer's.
        float32_head : bool
            vLLM and the trainer both compute the logits in float32, which brings the probabilities
            of the two nearer to each other. It costs some speed, and the trainer a copy of the
            head's weights for as long as it computes logits. Unsloth's `generate` stays as it is.
        device : str, optional
            "cpu" for Unsloth's CPU backend.
        revision : str, optional
        rows : int
            Responses sampled at once by Unsloth's `generate`.
        chunk : int
            Tokens that vLLM returns at once where a course may stop responses.
        options
            Further arguments of the class.
        """
        on_cpu = checks.check_gpu(device, "UnslothPolicy") == "cpu"
        # Unsloth takes every other value for on, also the empty one.
        if os.environ.get("UNSLOTH_VLLM_STANDBY", "0") != "0":
            raise ValueError(
                "UNSLOTH_VLLM_STANDBY: with it Unsloth gives .88 of the GPU to vLLM whatever "
                "gpu_memory_utilization says, and the trainer runs out of memory; unset it"
            )
        config, _ = checks.load_configuration(path, revision, options.get("template", "{prompt}"))
        checks.check_quantised(config, True, load_in_4bit)
        checks.check_length(config, max_length)
        # vLLM would be given no revision, so all parts load from the directory of that revision.
        source = checks.local_snapshot(path, revision)
        settings = {
            "lora_rank": lora_rank,
            "load_in_4bit": load_in_4bit,
            "max_length": max_length,
            "gpu_memory_utilization": gpu_memory_utilization,
            "float32_head": float32_head,
        }
        # What the loaded model depends on, and nothing of the policy around it, such as its
        # template.
        served = (source, *settings.values())
        first = None
        engine = None
        if fast_inference and served in _SERVED:
            model, tokenizer, engine, first = _SERVED[served]
        else:
            if fast_inference:
                make_room(is_unsloth=True)
            model, tokenizer = _load(source, settings, fast_inference, on_cpu)
            if fast_inference:
                # Without vLLM Unsloth prints why, goes on, and returns the model.
                llm = getattr(model, "vllm_engine", None)
                if llm is None:
                    raise RuntimeError(
                        "fast_inference=True: Unsloth has loaded the model without vLLM; what it "
                        "has printed says why. With fast_inference=False Unsloth samples instead"
                    )
                engine = Engine(llm, share=gpu_memory_utilization)
        policy = cls(
            model,
            tokenizer,
            name=str(path),
            float32_head=float32_head,
            engine=engine,
            max_length=max_length,
            rows=rows,
            chunk=chunk,
            **options,
        )
        if first is not None:
            # Served before: back to the adapter as it was first made, whatever has been trained
            # since.
            policy.load_state_dict(first)
        elif fast_inference:
            _SERVED[served] = (model, tokenizer, engine, policy.state_dict())
        return policy

    def _draw(self, texts: Ragged, request: Request) -> Samples:
        # Unsloth switches the whole model between two modes. Whatever happens while sampling, it
        # must be left in the mode for training.
        FastLanguageModel.for_inference(self.model)
        try:
            return super()._draw(texts, request)
        finally:
            FastLanguageModel.for_training(self.model, use_gradient_checkpointing="unsloth")
            # A forward pass in training mode copies activations to the machine's memory, also
            # where no backward pass will ask for them.
            self.model.eval()

    def _draw_batch(self, texts: Ragged, request: Request) -> Samples:
        """As in `TransformersPolicy`, through `generate`: Unsloth's cache is its own."""
        ids, mask = self._left_padded(texts.take(request.owner))
        # `generate` is left to run the model and its cache. Which token is drawn, and when a row
        # ends, is decided by the same functions as in our own loop, so that draws depend on the
        # seed alone.
        draws = _Draws(request, self.device)
        with self._precision():
            self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=request.sampling.max_new_tokens,
                # Greedy among the logits that `_Draws` leaves, which allow exactly one token.
                do_sample=False,
                logits_processor=LogitsProcessorList([draws.draw]),
                stopping_criteria=StoppingCriteriaList([draws.ends]),
            )
        return draws.samples

    def _states_in(self, layout: str, rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
        """As in `TransformersPolicy`; "joined" rows stand end to end, each with its prompt."""
        if layout != "joined":
            return super()._states_in(layout, rollouts)
        joined = rollouts.prompt.then(packing.without_last(rollouts.response), np.int64)
        states = self._states(
            torch.as_tensor(joined.values, device=self.device)[None],
            position_ids=torch.as_tensor(joined.places(), device=self.device)[None],
            packed_seq_lengths=torch.as_tensor(
                joined.lengths, device=self.device, dtype=torch.int32
            ),
        )
        # The prompt's last token predicts the first one of a response, and each token the next.
        before_first = joined.offsets[:-1] + rollouts.prompt.lengths - 1
        predicts = np.repeat(before_first, rollouts.lengths) + rollouts.response.places()
        found = states[0].index_select(0, torch.as_tensor(predicts, device=self.device))
        return found, torch.arange(len(found), device=found.device)

    def _states(self, ids: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
        """Final hidden states (R, T, H) of token ids (R, T).

        Unsloth takes the positions and the lengths of rows that stand end to end as `rows`.
        """
        if self.device.type == "cpu":
            return super()._states(ids)
        # The decoder alone would miss what Unsloth's outer forward sets up. This is how it is asked
        # for hidden states.
        before = os.environ.get("UNSLOTH_RETURN_HIDDEN_STATES", "0")
        os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = "1"
        try:
            return self.model(input_ids=ids, use_cache=False, **rows).logits
        finally:
            os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = before

    def _tried_decoder(self) -> Any:
        # Unsloth samples by a `generate` of its own, so there is none to be chosen.
        return CachedDecoder

    def _tried_layout(self, core: Any) -> str:
        """Joined rows where Unsloth keeps such rows apart, and padded ones elsewhere.

        Its CPU backend replaces the attention and is not asked.
        """
        config = self.model.config
        may_join = config.model_type in JOINED and not checks.has_windows(config)
        can_join = self.device.type != "cpu" and may_join and self._joins_alike()
        return "joined" if can_join else "padded"

    def _joins_alike(self) -> bool:
        """Whether joined rows compute what padded rows compute, tried on three rollouts."""
        rollouts = self._trial()
        joined, padded = (self._tried_states(each, rollouts) for each in ("joined", "padded"))
        # The mean over all entries: a row that sees another one changes most of its entries, while
        # bfloat16 changes them by about a hundredth.
        return bool((joined - padded).abs().mean() < 0.05 * padded.abs().mean())


class _Draws:
    """Draws the next token of every row as our own loop does, and leaves `generate` no other.

    Attributes
    ----------
    samples : Samples
    going : (n,) int64
        The rows that have not ended. `generate` goes on with the others, and nobody reads what
        follows in them.
    step : int
        Tokens that the rows have drawn.
    logits : (R, V) tensor
        That the newest tokens were drawn from.
    """

    def __init__(self, request: Request, device: torch.device) -> None:
        self.request = request
        self.uniforms = torch.as_tensor(request.uniforms, device=device)
        self.samples = Samples.empty(*request.uniforms.shape)
        self.going = np.arange(len(request.uniforms))
        self.step = 0
        self.logits = torch.empty(0)

    def draw(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The processor of logits: 0 for the token that was drawn and -inf for all others."""
        found = draw_tokens(
            scores.float(),
            self.uniforms[:, self.step],
            self.request.sampling,
            never=self.request.policy.never,
        )
        table = (self.samples.tokens, self.samples.logprobs, self.samples.entropies)
        for column, values in zip(table, found):
            column[self.going, self.step] = values.cpu().numpy()[self.going]
        self.samples.lengths[self.going] += 1
        self.logits = scores
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, found[0][:, None], 0.0)

    def ends(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """The criterion of `generate`: the rows that have an end token, a stop string, no room, or
        that the course has ended.
        """
        signals = signals_of(self.logits, None, self.going)
        ended = self.request.ends(self.samples, self.going, self.step - 1, *signals)
        self.going = self.going[~ended]
        is_over = ~np.isin(np.arange(len(input_ids)), self.going)
        return torch.as_tensor(is_over, device=input_ids.device)


def _load(
    source: str, settings: dict[str, Any], fast_inference: bool, on_cpu: bool
) -> tuple[Any, Any]:
    """The model with its adapter, and the tokenizer."""
    served: dict[str, Any] = {}
    if fast_inference:
        # Set in either case, since a model before may have set it to the other. Unsloth reads it
        # for its own trainer when it is imported, and says now that the trainer's head stays in 16
        # bits. That holds for its own trainer and not for `UnslothPolicy`.
        os.environ["UNSLOTH_VLLM_FP32_LM_HEAD"] = "1" if settings["float32_head"] else "0"
        served = {
            "fast_inference": True,
            "max_lora_rank": settings["lora_rank"],
            "gpu_memory_utilization": settings["gpu_memory_utilization"],
            # By default Unsloth has far fewer. For more than these vLLM records no graphs here.
            "max_num_seqs": 512,
            # For courses that stop responses; Unsloth would allow none.
            "max_logprobs": LOGPROBS_OF_MARGINS,
        }
    with checks.quiet():
        model, tokenizer = FastLanguageModel.from_pretrained(
            source,
            # Otherwise its tables put another repository in the place of a known name.
            use_exact_model_name=True,
            trust_remote_code=False,
            max_seq_length=settings["max_length"],
            load_in_4bit=settings["load_in_4bit"],
            dtype=torch.float32 if on_cpu else torch.bfloat16,
            **served,
        )
    if fast_inference:
        # Unsloth makes the model from vLLM's weights and the configuration alone, while vLLM also
        # ends responses at the tokens that generation_config.json names. Not every model has one.
        with suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(source)
    model = FastLanguageModel.get_peft_model(
        model,
        r=settings["lora_rank"],
        lora_alpha=settings["lora_rank"],
        target_modules=list(PROJECTIONS),
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=0,
    )
    return model, tokenizer
