"""The settings of labs on a model of one's own, such as `labs.transformers`.

They are checked here, before any package or model is loaded.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from workbench.policies import Sampling, checks
from workbench.utils.bounds import Count, CountOrZero, Flag, check_arguments, choice
from workbench.utils.names import OPTIMIZER_BITS
from workbench.utils.validation import instance_of, number

GpuShare = Annotated[float, partial(number, above=0, below=1)]
OptimizerBits = Annotated[int, choice(*OPTIMIZER_BITS)]
SamplingObject = Annotated[
    Sampling, partial(instance_of, kinds=Sampling, example="Sampling(max_new_tokens=512)")
]
Options = Annotated[
    Mapping[str, Any], partial(instance_of, kinds=Mapping, example="dict(weight_decay=0.1)")
]
LoraOptions = Annotated[Mapping[str, Any], partial(instance_of, kinds=Mapping, example="dict(r=8)")]


@dataclass(frozen=True)
class ModelConfig:
    """The settings that all labs on a model of one's own share.

    Attributes
    ----------
    model : str or path
        A local directory or a hub name of any causal language model of transformers.
    revision : str, optional
        Commit, tag or branch of a hub model.
    device : str, optional
        Default: "cuda" where there is one. "cpu" for Unsloth's CPU backend, which has no vLLM.
    template : str
        A pattern around the question with {prompt} in it, or "chat" for the tokenizer's chat
        template.
    sampling : Sampling
        How responses are drawn, in training and in evaluations.
    samples : int
        Responses to each held-out problem in an evaluation.
    micro_tokens : int
        Tokens of one micro-batch of an update, see `grpo_step`.
    chunk : int
        Tokens that vLLM returns at once where a course may stop responses. Small chunks lose fewer
        tokens behind the places where responses are stopped, and take more calls. Every chunk has a
        seed of its own, so another number gives other responses.
    """

    model: Any
    revision: str | None = None
    device: str | None = None
    template: str = "{prompt}"
    sampling: SamplingObject = Sampling(max_new_tokens=512)
    samples: int = 8
    micro_tokens: int = 16_384
    chunk: Count = 32

    # Left out of a description at their defaults, see `slots.Slot.later`.
    later: ClassVar[tuple[str, ...]] = ("chunk",)

    def __post_init__(self) -> None:
        check_arguments(self)
        instance_of("model", self.model, (str, os.PathLike), "'Qwen/Qwen2.5-0.5B-Instruct'")
        checks.check_model(self.model)
        checks.check_template(self.template)
        if self.revision is not None and Path(self.model).exists():
            raise ValueError(f"revision={self.revision!r}: {self.model} is a local directory")

    def check_used(self, sampler: str, unused: Sequence[str]) -> None:
        """ValueError for a field that is set, and has no effect with what samples."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in unused and value != each.default:
                raise ValueError(f"{each.name}={value!r}: it has no effect with {sampler}")

    def options_of(self, function: Callable[..., Any], *further: str) -> dict[str, Any]:
        """The fields, but for the model, that are arguments of a function or class too.

        And those whose names are `further`.
        """
        names = {*inspect.signature(function).parameters, *further} - {"model"}
        return {name: value for name, value in vars(self).items() if name in names}


@dataclass(frozen=True)
class TransformersConfig(ModelConfig):
    """The settings of `labs.transformers`, besides those of `ModelConfig`.

    Attributes
    ----------
    lora : dict, optional
        Keyword arguments of `peft.LoraConfig`, such as
        dict(r=64, lora_alpha=64, target_modules="all-linear"); None trains all parameters.
    dtype : {"float32", "bfloat16", "float16"}
        Of the weights. On a GPU float32 weights compute in bfloat16. Weights in 16 bits are for
        LoRA only, since full training would round small steps away.
    gradient_checkpointing : bool, optional
        Compute each layer again in the backward pass, in place of keeping what it computed.
        Default: on a GPU.
    engine : {"transformers", "vllm"}
        What samples. vLLM keeps its own copy of the weights, which is synchronised before each
        call.
    max_length : int, optional
        Tokens of prompt and response; None for all that the model has.
    gpu_memory_utilization : float
        vLLM's share of the GPU's memory.
    engine_sleeps : bool
        Whether vLLM gives its memory to the trainer while it does not sample.
    hand_over : {"adapter", "merged"}
        How vLLM gets an adapter: by itself, for vLLM's own kernels of adapters, or added to the
        weights in memory, so that vLLM decodes a plain model.
    float32_head : bool
        The trainer, and vLLM where it samples, compute their logits in float32, nearer to each
        other and slower.
    rows : int
        Responses that transformers samples at once. vLLM chooses that by itself.
    learning_rate : float, optional
        Default: 5e-6 with LoRA (PODS, section 4.1), 1e-6 without.
    """

    lora: LoraOptions | None = None
    dtype: Annotated[str, choice("float32", "bfloat16", "float16")] = "float32"
    gradient_checkpointing: bool | None = None
    engine: Annotated[str, choice("transformers", "vllm")] = "transformers"
    max_length: Count | None = None
    gpu_memory_utilization: GpuShare = 0.4
    engine_sleeps: bool = False
    learning_rate: float | None = None
    hand_over: Annotated[str, choice("adapter", "merged")] = "adapter"
    float32_head: Flag = False
    rows: Count = 1024

    later: ClassVar[tuple[str, ...]] = ("chunk", "hand_over", "float32_head", "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_precision(self.dtype, self.lora)
        _check_room(self.sampling, self.max_length)
        if self.engine == "vllm":
            checks.check_hand_over(self.lora or {}, self.hand_over == "merged")


@dataclass(frozen=True)
class UnslothConfig(ModelConfig):
    """The settings of `labs.unsloth`, besides those of `ModelConfig`.

    Attributes
    ----------
    lora_rank : int
        Rank and alpha of the adapter on all seven linear projections.
    load_in_4bit : bool
        Base weights in 4 bits, by bitsandbytes.
    max_length : int
        Tokens of prompt and response.
    fast_inference : bool
        Sample by vLLM, on the same weights; otherwise by Unsloth's `generate`.
    gpu_memory_utilization : float
        Share of the GPU's memory for the shared weights and vLLM's cache; the trainer has the rest.
    float32_head : bool
        vLLM and the trainer compute their logits in float32, nearer to each other and slower.
    rows : int
        Responses that Unsloth's `generate` samples at once, without vLLM.
    learning_rate : float
        PODS, section 4.1.
    betas : (first, second)
        Of AdamW.
    optimizer_bits : {32, 8}
        Of the moments that AdamW keeps; 8 by bitsandbytes.
    warm_up : int
        Optimizer steps over which the learning rate rises linearly to its value.
    max_grad_norm : float
        The gradient is scaled down to this norm.
    """

    template: str = "chat"
    lora_rank: Count = 64
    load_in_4bit: bool = False
    max_length: Count = 1024
    fast_inference: bool = True
    gpu_memory_utilization: GpuShare = 0.5
    float32_head: Flag = False
    rows: Count = 256
    learning_rate: float = 5e-6
    betas: tuple[float, float] = (0.9, 0.999)
    optimizer_bits: OptimizerBits = 32
    warm_up: CountOrZero = 0
    max_grad_norm: float = 1.0

    later: ClassVar[tuple[str, ...]] = ("chunk", "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_room(self.sampling, self.max_length)
        needs_gpu = self.fast_inference or self.load_in_4bit or self.optimizer_bits == 8
        if self.device == "cpu" and needs_gpu:
            raise ValueError(
                "device='cpu': Unsloth has neither vLLM nor 4 bits there, and bitsandbytes no 8 "
                "bits; pass fast_inference=False, load_in_4bit=False and optimizer_bits=32"
            )


def _check_room(sampling: Sampling, max_length: int | None) -> None:
    """Raise ValueError where a response leaves no room for a prompt."""
    if max_length is not None and sampling.max_new_tokens >= max_length:
        raise ValueError(
            f"max_length={max_length}: prompt and response share it, and sampling.max_new_tokens "
            f"is {sampling.max_new_tokens}; raise the one or lower the other"
        )
