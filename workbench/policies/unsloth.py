"""LoRA by Unsloth on one GPU, sampled by vLLM on the same weights, or by Unsloth's own `generate`.

Log-probabilities and entropies are always the trainer's, by a forward pass over what was drawn: Unsloth's kernels for
sampling and for training differ in the last digits of bfloat16. How far apart they are is the column `sampler_gap`.
Unsloth replaces parts of transformers and peft, so import this room before them; later it works, with a warning from
Unsloth and without some of its speed. On a CPU (`device="cpu"`) Unsloth 2026.10.9 and later have a backend
that computes in float32 and has no vLLM.
"""

import os
from contextlib import nullcontext

from workbench.policies.checks import (
    check_gpu,
    check_length,
    check_memory,
    check_packages,
    check_quantised,
    load_configuration,
    offline_hint,
    quiet,
)

check_packages("unsloth", "unsloth_zoo", "peft")
from unsloth import FastLanguageModel  # noqa: E402

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from workbench.policies.decoding import draw_tokens  # noqa: E402
from workbench.policies.transformers import TransformersPolicy  # noqa: E402
from workbench.policies.vllm import Engine  # noqa: E402

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_SERVED = {}  # arguments -> model, tokenizer, engine, first adapter


class UnslothPolicy(TransformersPolicy):
    """A causal LM with a LoRA adapter by Unsloth on all seven projections of every layer."""

    _samples_apart = True

    def __init__(self, model, tokenizer, **options):
        super().__init__(model, tokenizer, **options)
        plain = GenerationConfig(eos_token_id=self.end_ids, pad_token_id=self._pad_id)
        model.generation_config = model.get_base_model().generation_config = (
            plain  # a model's own may bend the distribution
        )

    @classmethod
    def from_pretrained(
        cls,
        path,
        *,
        lora_rank=64,
        load_in_4bit=False,
        max_length=1024,
        fast_inference=True,
        gpu_memory_utilization=0.5,
        device=None,
        revision=None,
        rows=256,
        **options,
    ):
        """Loads `path`, a directory or a hub name, with a fresh adapter of rank and alpha `lora_rank`.

        max_length: tokens of prompt and response. fast_inference: sample by vLLM, which shares the base weights;
        gpu_memory_utilization: share of the GPU's memory for them and for vLLM's cache, the rest is the trainer's.
        vLLM does not give its memory back before the process ends: with the same arguments a process gets the same
        model again, its adapter set back to where it began, under policies made earlier too.
        """
        on_cpu = check_gpu(device, "UnslothPolicy") == "cpu"
        config, _ = load_configuration(path, revision, options.get("template", "{prompt}"))
        check_quantised(config, True, load_in_4bit)
        check_length(config, max_length)
        arguments = (
            str(path),
            revision,
            lora_rank,
            load_in_4bit,
            max_length,
            gpu_memory_utilization,
        )
        if fast_inference and arguments in _SERVED:
            model, tokenizer, engine, first = _SERVED[arguments]
        else:
            if not on_cpu:
                weight = (
                    0.75 if load_in_4bit else 2
                )  # bytes; embeddings and scales of a 4-bit model are not in 4 bits
                check_memory(
                    config,
                    **{"trainer": 0, "sampler": weight, "share": gpu_memory_utilization}
                    if fast_inference
                    else {"trainer": weight},
                )
            model, tokenizer = _load(
                path,
                revision,
                lora_rank,
                load_in_4bit,
                max_length,
                fast_inference,
                gpu_memory_utilization,
                on_cpu,
            )
            engine, first = Engine(model.vllm_engine) if fast_inference else None, None
        policy = cls(
            model,
            tokenizer,
            name=str(path),
            engine=engine,
            max_length=max_length,
            rows=rows,
            **options,
        )
        if first is not None:
            policy.load_state_dict(first)
        elif fast_inference:
            _SERVED[arguments] = model, tokenizer, engine, policy.state_dict()
        return policy

    def _draw_all(self, *arguments):
        FastLanguageModel.for_inference(self.model)
        try:
            return super()._draw_all(*arguments)
        finally:
            FastLanguageModel.for_training(self.model, use_gradient_checkpointing="unsloth")

    def _sample(self, prompts, owner, uniforms, sampling):
        """As in `TransformersPolicy`, through `generate`: Unsloth's cache is its own."""
        prompts = prompts.take(owner)
        ids = torch.as_tensor(prompts.padded(self._pad_id, side="left"), device=self.device).long()
        mask = torch.as_tensor(prompts.mask()[:, ::-1].copy(), device=self.device).long()
        drawn, ends = (
            _Draws(torch.as_tensor(uniforms, device=self.device), sampling),
            _Ends(self, ids.shape[1], sampling.stop),
        )
        with self._precision():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=sampling.max_new_tokens,
                do_sample=False,
                logits_processor=LogitsProcessorList([drawn]),
                stopping_criteria=StoppingCriteriaList([ends]),
            )
        tokens = out[:, ids.shape[1] :].cpu().numpy().astype(np.int32)
        width = tokens.shape[1]
        lengths = np.where(ends.at > 0, ends.at, width)
        inside = np.arange(width) < lengths[:, None]
        logprobs, entropies = (
            np.where(inside, values, 0).astype(np.float32) for values in drawn.columns()
        )
        pad = ((0, 0), (0, sampling.max_new_tokens - width))
        return (
            np.pad(tokens, pad),
            np.pad(logprobs, pad),
            lengths,
            entropies.sum(1) / lengths,
            ends.at == 0,
        )

    def _states(self, ids):
        if self.device.type == "cpu":
            return super()._states(ids)
        # The decoder alone would miss what Unsloth's outer forward sets up; this is how it is asked for hidden states.
        before = os.environ.get("UNSLOTH_RETURN_HIDDEN_STATES", "0")
        os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = "1"
        try:
            return self.model(input_ids=ids, use_cache=False).logits
        finally:
            os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = before

    def _precision(self):
        return (
            nullcontext() if self.device.type == "cpu" else torch.autocast("cuda", torch.bfloat16)
        )


class _Draws(LogitsProcessor):
    """Draws every row's next token as our own loop does, leaves `generate` no other, and keeps what it saw."""

    def __init__(self, uniforms, sampling):
        self.uniforms, self.sampling, self.logprobs, self.entropies = uniforms, sampling, [], []

    def __call__(self, input_ids, scores):
        tokens, logprobs, entropies = draw_tokens(
            scores.float(), self.uniforms[:, len(self.logprobs)], self.sampling
        )
        self.logprobs.append(logprobs)
        self.entropies.append(entropies)
        return torch.full_like(scores, -torch.inf).scatter(1, tokens[:, None], 0.0)

    def columns(self):
        """Log-probabilities and entropies of the tokens, (R, T) each."""
        return [
            torch.stack(steps, dim=1).cpu().numpy() for steps in (self.logprobs, self.entropies)
        ]


class _Ends(StoppingCriteria):
    """Ends a row by end token or stop string; at (R,): its length then, 0 while it goes on."""

    def __init__(self, policy, start, stop):
        self.policy, self.start, self.stop, self.at = policy, start, stop, None

    def __call__(self, input_ids, scores, **_):
        tokens = input_ids[:, self.start :].cpu().numpy()
        if self.at is None:
            self.at = np.zeros(len(tokens), dtype=np.int64)
        self.at[(self.at == 0) & self.policy._ends(tokens, self.stop)] = tokens.shape[1]
        return torch.as_tensor(self.at > 0, device=input_ids.device)


def _load(
    path,
    revision,
    lora_rank,
    load_in_4bit,
    max_length,
    fast_inference,
    gpu_memory_utilization,
    on_cpu,
):
    served = {
        "fast_inference": True,
        "max_lora_rank": lora_rank,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    with offline_hint(path), quiet():
        model, tokenizer = FastLanguageModel.from_pretrained(
            str(path),
            revision=revision,
            max_seq_length=max_length,
            load_in_4bit=load_in_4bit,
            dtype=torch.float32 if on_cpu else torch.bfloat16,
            **(served if fast_inference else {}),
        )
    return FastLanguageModel.get_peft_model(
        model,
        r=lora_rank,
        lora_alpha=lora_rank,
        target_modules=list(PROJECTIONS),
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=0,
    ), tokenizer
