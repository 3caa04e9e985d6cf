"""vLLM as the sampler of a policy that something else trains, in the same process and on the same GPU.

    engine = Engine.start("Qwen/Qwen2.5-0.5B-Instruct", gpu_memory_utilization=0.4)
    policy = TransformersPolicy.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", engine=engine)

Before every call of `generate` the engine is brought to the trainer's weights of that moment. Nothing keeps count of
steps: an adapter is compared with the one that was handed over, and all weights of a fully trained model are handed
over each time, so that no way of changing them can go unnoticed. The probabilities that ratios are taken of are the
trainer's own; how far the sampler's are from them is the column `sampler_gap` of the rollouts.
"""

import os
import tempfile
from functools import cache
from itertools import count

import numpy as np
import torch
from transformers import AutoConfig

from workbench.policies.checks import check_memory, check_vllm
from workbench.rollouts import Ragged

NUMBERS = count(
    1
)  # of adapters, never used twice in a process: vLLM keeps an adapter by its number
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the adapter ranks vLLM reserves room for


class Engine:
    """A vLLM engine in this process. updates: how often weights have been handed over."""

    def __init__(self, llm):
        self.llm, self.updates = llm, 0
        self.max_length = llm.model_config.max_model_len
        self._tempered = llm.model_config.logprobs_mode == "processed_logprobs"
        self._adapter = self._handed = self._folder = None

    @classmethod
    @cache
    def start(
        cls,
        path,
        *,
        device="cuda",
        max_length=None,
        gpu_memory_utilization=0.4,
        lora_rank=None,
        revision=None,
        trainer=0.0,
    ):
        """The engine for the model at `path`, bfloat16 on a GPU and float32 on a CPU.

        max_length: tokens of prompt and response, None for all the model has; gpu_memory_utilization: share of the GPU's
        memory for its weights and cache, the trainer has the rest (on a CPU: share of the machine's); lora_rank: of the
        adapter it will be handed, None for full-parameter training; trainer: bytes a weight that the trainer will need, for
        which there must be room beside the engine.
        vLLM does not give its memory back before the process ends, so the same arguments get the same engine: every policy
        hands over its own weights before it samples.
        """
        if lora_rank is not None and lora_rank > RANKS[-1]:
            raise ValueError(
                f"lora_rank={lora_rank}: vLLM takes adapters of rank up to {RANKS[-1]}"
            )
        check_vllm(device)
        if str(device).startswith("cuda"):
            config = AutoConfig.from_pretrained(path, revision=revision)
            check_memory(config, trainer=trainer, sampler=2, share=gpu_memory_utilization)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
            "0"  # weights are handed over within this process
        )
        from vllm import LLM

        room = (
            {}
            if lora_rank is None
            else {
                "enable_lora": True,
                "max_loras": 1,
                "max_lora_rank": next(rank for rank in RANKS if rank >= lora_rank),
            }
        )
        with torch.random.fork_rng(devices=()):  # it seeds the generator of the whole process
            return cls(
                LLM(
                    str(path),
                    revision=revision,
                    tokenizer_revision=revision,
                    max_model_len=max_length,
                    dtype="float32" if device == "cpu" else "bfloat16",
                    enforce_eager=device == "cpu",
                    gpu_memory_utilization=gpu_memory_utilization,
                    generation_config="vllm",
                    max_logprobs=0,
                    logprobs_mode="processed_logprobs",
                    **room,
                )
            )

    def update(self, model):
        """Hands over the model's weights, or its LoRA adapter where that has changed."""
        if not hasattr(model, "peft_config"):
            self.llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": iter(model.state_dict().items())}
            )
        elif self._same(weights := [p.detach() for p in model.parameters() if p.requires_grad]):
            return
        else:
            self._hand_over(model)
            self._handed = [w.clone() for w in weights]
        self.updates += 1
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not drop what it computed by the old weights")

    def respond(self, prompts, seeds, sampling, end_ids):
        """One response to each of R prompts, R seeds: what `TransformersPolicy._sample` returns, entropies unknown (NaN)."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                max_tokens=sampling.max_new_tokens,
                stop=list(sampling.stop),
                include_stop_str_in_output=True,
                stop_token_ids=end_ids,
                detokenize=bool(sampling.stop),
                skip_special_tokens=False,
                logprobs=0,
            )
            for seed in seeds
        ]
        prompts = [{"prompt_token_ids": prompts[i].tolist()} for i in range(len(prompts))]
        outputs = self.llm.generate(prompts, params, use_tqdm=False, lora_request=self._adapter)
        answers = [output.outputs[0] for output in outputs]
        odd = {a.finish_reason for a in answers} - {"stop", "length"}
        if odd:
            raise RuntimeError(f"vLLM ended a response by {odd.pop()!r}")
        tokens = Ragged.of([a.token_ids for a in answers], np.int32)
        logprobs = Ragged.of(
            [[step[t].logprob for step, t in zip(a.logprobs, a.token_ids)] for a in answers],
            np.float32,
        )
        truncated = np.array([a.finish_reason == "length" for a in answers], dtype=bool)
        return (
            tokens.padded(),
            logprobs.padded(),
            tokens.lengths,
            np.full(len(answers), np.nan),
            truncated,
        )

    def comparable(self, sampling):
        """Whether the engine's log-probabilities are of the whole tempered distribution, as the trainer's are.

        With top_p or top_k vLLM takes them over the tokens left.
        """
        plain = sampling.temperature in (0, 1) or self._tempered
        return plain and sampling.top_p == 1 and not sampling.top_k

    def _same(self, weights):
        return self._handed is not None and all(map(torch.equal, weights, self._handed))

    def _hand_over(self, model):
        """The adapter, by a directory and a number of its own."""
        from vllm.lora.request import LoRARequest

        if self._adapter is not None:
            self.llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-adapter-")
        model.save_pretrained(self._folder.name, save_embedding_layers=False)
        number = next(NUMBERS)
        self._adapter = LoRARequest(f"adapter-{number}", number, self._folder.name)
