"""vLLM as the sampler of a policy that something else trains, in one process and on one GPU.

    engine = Engine.start("Qwen/Qwen2.5-0.5B-Instruct", gpu_memory_utilization=0.4)
    policy = TransformersPolicy(model, tokenizer, engine=engine)

Before every call of `generate` the engine is brought to the trainer's weights of that moment.
Nothing keeps count of steps: an adapter is compared with the one that was handed over, and all
weights of a fully trained model are handed over each time, so that no way of changing them can go
unnoticed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedModel

from workbench.policies import Sampling
from workbench.policies.checks import check_memory, check_vllm
from workbench.policies.decoding import Drawn
from workbench.rollouts import Ragged

# Numbers of adapters. vLLM keeps an adapter by its number, so none is used twice in a process.
NUMBERS = count(1)
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the adapter ranks that vLLM reserves room for
SEQUENCES = 512  # responses decoded at once; by default vLLM takes far fewer of them


class Engine:
    """A vLLM engine in this process.

    Parameters
    ----------
    llm : vllm.LLM
    sleeps : bool
        Whether the engine gives its memory to the trainer while it does not sample. The LLM must
        have been made with `enable_sleep_mode`.

    Attributes
    ----------
    max_length : int
        Tokens that prompt and response may take together.
    updates : int
        How often weights have been handed over.
    """

    def __init__(self, llm: Any, sleeps: bool = False) -> None:
        self.llm = llm
        self.sleeps = sleeps
        self.max_length = llm.model_config.max_model_len
        self.updates = 0
        self._dtype = llm.model_config.dtype
        self._tempered = llm.model_config.logprobs_mode == "processed_logprobs"
        self._asleep = False
        self._adapter: Any = None  # the request that names the adapter of the moment
        self._handed: list[torch.Tensor] | None = None  # the adapter's weights as handed over
        self._folder: tempfile.TemporaryDirectory | None = None

    @classmethod
    @cache
    def start(
        cls,
        path: str,
        *,
        device: str = "cuda",
        max_length: int | None = None,
        gpu_memory_utilization: float = 0.4,
        lora_rank: int | None = None,
        revision: str | None = None,
        trainer: float = 0.0,
        sleeps: bool = False,
    ) -> Engine:
        """The engine for a model, in bfloat16 on a GPU and in float32 on a CPU.

        vLLM does not give its memory back before the process ends, so the same arguments get the
        same engine: every policy hands over its own weights before it samples.

        Parameters
        ----------
        path : str
            A directory or a hub name.
        device : str
        max_length : int, optional
            Tokens of prompt and response. Default: all that the model has.
        gpu_memory_utilization : float
            Share of the GPU's memory for its weights and cache. The trainer has the rest. On a CPU
            it is a share of the machine's memory.
        lora_rank : int, optional
            Of the adapter that it will be handed; None for full training.
        revision : str, optional
        trainer : float
            Bytes a weight that the trainer will need, for which there must be room beside it.
        sleeps : bool
            Give the memory to the trainer between two calls of `generate`. Waking up takes about
            the time of copying the weights to the GPU.
        """
        if lora_rank is not None and lora_rank > RANKS[-1]:
            raise ValueError(
                f"lora_rank={lora_rank}: vLLM takes adapters of rank up to {RANKS[-1]}"
            )
        check_vllm(device)
        if str(device).startswith("cuda"):
            config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
            check_memory(config, trainer=trainer, sampler=2, share=gpu_memory_utilization)
        # Weights are handed over within this process.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # Imported here and not at the top: this module is imported without vLLM too, and
        # `check_vllm` has said how to install it.
        from vllm import LLM

        further: dict[str, Any] = {}
        if lora_rank is not None:
            further["enable_lora"] = True
            further["max_loras"] = 1
            further["max_lora_rank"] = next(rank for rank in RANKS if rank >= lora_rank)
        if sleeps:
            further["enable_sleep_mode"] = True
        # vLLM seeds the generator of the whole process.
        with torch.random.fork_rng(devices=()):
            llm = LLM(
                str(path),
                revision=revision,
                tokenizer_revision=revision,
                trust_remote_code=False,
                max_model_len=max_length,
                max_num_seqs=SEQUENCES,
                dtype="float32" if device == "cpu" else "bfloat16",
                enforce_eager=device == "cpu",
                gpu_memory_utilization=gpu_memory_utilization,
                # Not the model's own generation config, whose top_p or repetition penalty would
                # change the distribution unasked.
                generation_config="vllm",
                max_logprobs=0,
                logprobs_mode="processed_logprobs",
                **further,
            )
        return cls(llm, sleeps)

    def update(self, model: Any) -> None:
        """Hand over the model's weights, or its LoRA adapter where that has changed."""
        self._wake()
        if isinstance(model, PreTrainedModel):
            weights = iter(model.state_dict().items())
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        else:
            adapter = [weight.detach() for weight in model.parameters() if weight.requires_grad]
            if self._has(adapter):
                return
            self._hand_over(model)
            self._handed = [weight.clone() for weight in adapter]
        self.updates += 1
        # Cached keys and values of prompts come from the old weights, and the next call would use
        # them.
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not drop what it computed by the old weights")

    def respond(
        self, prompts: Ragged, seeds: Sequence[int], sampling: Sampling, end_ids: list[int]
    ) -> Drawn:
        """One response to each of R prompts, with one seed each. Entropies are unknown (NaN)."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                # vLLM writes -1 for all tokens, and this package 0.
                top_k=sampling.top_k or -1,
                max_tokens=sampling.max_new_tokens,
                stop=list(sampling.stop),
                include_stop_str_in_output=True,
                stop_token_ids=end_ids,
                # Texts are made by the tokenizer later. vLLM needs them only to look for stop
                # strings.
                detokenize=bool(sampling.stop),
                skip_special_tokens=False,
                logprobs=0,
            )
            for seed in seeds
        ]
        inputs = [{"prompt_token_ids": prompts[i].tolist()} for i in range(len(prompts))]
        self._wake()
        outputs = self.llm.generate(inputs, params, use_tqdm=False, lora_request=self._adapter)
        self._sleep()
        return _drawn([output.outputs[0] for output in outputs])

    def comparable(self, sampling: Sampling) -> bool:
        """Whether log-probabilities are of the whole tempered distribution, as the trainer's are.

        With top_p or top_k vLLM takes them over the tokens that are left.
        """
        # Raw and processed log-probabilities are the same at temperature 1, and the trainer takes
        # the plain distribution where sampling is greedy.
        plain = sampling.temperature in (0, 1) or self._tempered
        return plain and sampling.top_p == 1 and not sampling.top_k

    def _wake(self) -> None:
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def _sleep(self) -> None:
        """Move the weights to the machine's memory and drop the cache, until the next call."""
        if self.sleeps:
            self.llm.sleep(level=1)
            self._asleep = True

    def _has(self, adapter: list[torch.Tensor]) -> bool:
        """Whether these are the weights of the adapter that was handed over last."""
        return self._handed is not None and all(map(torch.equal, adapter, self._handed))

    def _hand_over(self, model: Any) -> None:
        """Give vLLM the adapter by a directory and a number of its own.

        It is written in the precision that vLLM computes in: half the bytes of float32 on a GPU.
        """
        from vllm.lora.request import LoRARequest

        if self._adapter is not None:
            self.llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        # Kept as an attribute, since the request names this directory and it is deleted with the
        # object.
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-adapter-")
        weights = {
            name: weight.detach().to(self._dtype)
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
        model.save_pretrained(self._folder.name, state_dict=weights, save_embedding_layers=False)
        number = next(NUMBERS)
        self._adapter = LoRARequest(f"adapter-{number}", number, self._folder.name)


def _drawn(answers: list[Any]) -> Drawn:
    """vLLM's completions as the table of what was drawn."""
    for answer in answers:
        # Anything else is no whole response of the model, and would be rewarded as a short one.
        if answer.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a response by {answer.finish_reason!r}")
    tokens = Ragged.of([answer.token_ids for answer in answers], np.int32)
    chosen = [
        [of_step[token].logprob for of_step, token in zip(answer.logprobs, answer.token_ids)]
        for answer in answers
    ]
    logprobs = Ragged.of(chosen, np.float32).padded()
    return Drawn(
        tokens=tokens.padded(),
        logprobs=logprobs,
        entropies=np.full_like(logprobs, np.nan),
        lengths=tokens.lengths,
        truncated=np.array([answer.finish_reason == "length" for answer in answers], dtype=bool),
    )
