"""vLLM as the sampler of a policy that something else trains, in one process and on one GPU.

    engine = Engine.start("Qwen/Qwen2.5-0.5B-Instruct", gpu_memory_utilization=0.4)
    policy = TransformersPolicy(model, tokenizer, engine=engine)

Before every call of `generate` the engine is brought to the trainer's weights of that moment.
Nothing keeps count of steps: an adapter is compared with the one that was handed over, and all
weights of a fully trained model are handed over each time, so that no way of changing them can go
unnoticed.

An adapter is handed over in one of two ways. Through a directory, vLLM computes with the adapter
beside its own weights, by the kernels that it has for that. Or merged in memory, vLLM gets every
weight with the adapter added and decodes a plain model. `test_benchmark_hand_over` of
tests/test_gpu.py measures both.
"""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from workbench.policies import Sampling
from workbench.policies.checks import RANKS, check_vllm
from workbench.policies.decoding import LOGPROBS_OF_MARGINS, NO_CHANCE, Samples
from workbench.policies.merged import merged_weights
from workbench.rollouts import Ragged
from workbench.utils.failures import import_apart

# Numbers of adapters. vLLM keeps an adapter by its number, so none is used twice in a process.
NUMBERS = count(1)
MANY = 1024  # responses that vLLM decodes at once on a large GPU
# The engine that was started last, by the arguments of `start`. It stays when no policy uses it any
# more, so that one run after another finds it running.
_LATEST: dict[tuple, Engine] = {}
_RUNNING: weakref.WeakSet[Engine] = weakref.WeakSet()  # all engines that have not been stopped


class Engine:
    """A vLLM engine in this process.

    Parameters
    ----------
    llm : vllm.LLM
    sleeps : bool
        Whether the engine gives its memory to the trainer while it does not sample. The LLM must
        have been made with `enable_sleep_mode`.
    merges : bool
        Whether an adapter is handed over merged into the weights. The LLM must have been made with
        `enable_lora` otherwise.
    stops : bool
        Whether the engine ends, and gives its memory back, with the last policy that uses it. One
        whose weights are the trainer's too, as Unsloth's, lasts as long as its process.
    share : float, optional
        Of the GPU's memory that it has.

    Attributes
    ----------
    max_length : int
        Tokens that prompt and response may take together.
    updates : int
        How often weights have been handed over.
    """

    def __init__(
        self,
        llm: Any,
        *,
        sleeps: bool = False,
        merges: bool = False,
        stops: bool = False,
        share: float | None = None,
    ) -> None:
        self.llm = llm
        self.sleeps = sleeps
        self.merges = merges
        self.stops = stops
        self.share = share
        # It runs once: when it is called, or when nothing refers to the engine any more.
        self._end = weakref.finalize(self, _shut_down, llm) if stops else None
        if self._end is not None:
            self._end.atexit = False  # a process that ends gives all memory back anyway
        _RUNNING.add(self)
        self.max_length = llm.model_config.max_model_len
        self.updates = 0
        self._dtype = llm.model_config.dtype
        self._tempered = llm.model_config.logprobs_mode == "processed_logprobs"
        self._adapter: Any = None  # the request that names the adapter of the moment
        self._handed: list[torch.Tensor] | None = None  # the adapter's weights as handed over
        self._folder: tempfile.TemporaryDirectory | None = None

    @classmethod
    def start(cls, path: Any, **options: Any) -> Engine:
        """The engine for a model: the one that was started last, if its arguments were the same.

        Every policy hands over its own weights before it samples, so that several can share an
        engine. One that no policy uses any more is stopped before another is started. Two at a time
        are refused: when one of them ends, vLLM closes what both need in the process.

        Parameters
        ----------
        path, options
            See `make`.

        Raises
        ------
        ValueError
            Where another engine is still in use.
        """
        key = (str(path), *sorted(options.items()))
        if key not in _LATEST:
            make_room()
            _LATEST[key] = cls.make(path, **options)
        return _LATEST[key]

    @classmethod
    def make(
        cls,
        path: Any,
        *,
        device: str = "cuda",
        max_length: int | None = None,
        gpu_memory_utilization: float = 0.4,
        lora_rank: int | None = None,
        revision: str | None = None,
        sleeps: bool = False,
        merges: bool = False,
        float32_head: bool = False,
    ) -> Engine:
        """A new engine for a model, in bfloat16 on a GPU and in float32 on a CPU.

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
            Of the adapter that it will be handed, at most 512; None for full training.
        revision : str, optional
        sleeps : bool
            Give the memory to the trainer between two calls of `generate`. Waking up takes about
            the time of copying the weights to the GPU.
        merges : bool
            The adapter will be handed over merged into the weights.
        float32_head : bool
            Compute the logits in float32.
        """
        check_vllm(device)
        # Weights are handed over within this process.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # Imported here and not at the top: this module is imported without vLLM too, and
        # `check_vllm` has said how to install it.
        LLM = import_apart("vllm", "LLM")
        further: dict[str, Any] = {}
        if lora_rank is not None and not merges:
            further["enable_lora"] = True
            further["max_loras"] = 1
            further["max_lora_rank"] = next(rank for rank in RANKS if rank >= lora_rank)
        if sleeps:
            further["enable_sleep_mode"] = True
            _allow_sleep()
        if device != "cpu" and has_many_sequences():
            further["max_cudagraph_capture_size"] = MANY
        if float32_head:
            further["hf_overrides"] = {"head_dtype": "float32"}
        # vLLM seeds the generator of the whole process.
        with torch.random.fork_rng(devices=()):
            llm = LLM(
                str(path),
                revision=revision,
                tokenizer_revision=revision,
                trust_remote_code=False,
                max_model_len=max_length,
                dtype="float32" if device == "cpu" else "bfloat16",
                enforce_eager=device == "cpu",
                gpu_memory_utilization=gpu_memory_utilization,
                # Not the model's own generation config, whose top_p or repetition penalty would
                # change the distribution unasked.
                generation_config="vllm",
                max_logprobs=LOGPROBS_OF_MARGINS,
                logprobs_mode="processed_logprobs",
                **further,
            )
        return cls(llm, sleeps=sleeps, merges=merges, stops=True, share=gpu_memory_utilization)

    def stop(self) -> None:
        """Give all of the memory back. The policies that use the engine cannot sample any more.

        Raises
        ------
        RuntimeError
            For an engine that shares its weights with the trainer.
        """
        if self._end is None:
            raise RuntimeError(
                "the engine computes with the trainer's own weights, so it ends with its process"
            )
        if self.llm is None:
            return
        self.llm = None
        _RUNNING.discard(self)
        if self in _LATEST.values():
            _LATEST.clear()
        self._end()

    def update(self, model: Any) -> None:
        """Hand over the model's weights, or its LoRA adapter where that has changed."""
        self._wake()
        # Requests of a call that was interrupted. They would be answered in the next one, and keep
        # what was computed by older weights.
        engine = self.llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)
        if isinstance(model, PreTrainedModel):
            self._reload(model.state_dict().items())
        else:
            adapter = [weight.detach() for weight in model.parameters() if weight.requires_grad]
            # The very weights of the adapter that was handed over last.
            if self._handed is not None and all(map(torch.equal, adapter, self._handed)):
                return
            self._handed = None  # until all of it has been handed over
            if self.merges:
                self._reload(merged_weights(model, self._dtype))
            else:
                self._hand_over(model)
            self._handed = [weight.clone() for weight in adapter]
        self.updates += 1
        # Cached keys and values of prompts come from the old weights, and the next call would use
        # them.
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not drop what it computed by the old weights")

    def respond(
        self,
        prompts: Ragged,
        seeds: list[int],
        sampling: Sampling,
        end_ids: list[int],
        never: list[int],
        room: np.ndarray,
        margins: bool = False,
    ) -> tuple[Samples, Ragged | None]:
        """One response to each of R prompts, with one seed each, of at most room (R,) tokens.

        The tokens `never` are not drawn. With margins=True the gap between the two largest
        probabilities at each token comes with the responses. An engine that sleeps stays awake
        until `rest` is called.
        """
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                # vLLM writes -1 for all tokens, and this package 0.
                top_k=sampling.top_k or -1,
                max_tokens=int(most),
                stop=list(sampling.stop),
                include_stop_str_in_output=True,
                stop_token_ids=end_ids,
                # vLLM's log-probabilities are those without these tokens. They differ by less than
                # rounding, since no model was trained to say a token that does not exist.
                logit_bias=dict.fromkeys(never, NO_CHANCE) or None,
                # Texts are made by the tokenizer later. vLLM needs them only to look for stop
                # strings.
                detokenize=bool(sampling.stop),
                skip_special_tokens=False,
                logprobs=LOGPROBS_OF_MARGINS if margins else 0,
                # Lists of numbers, in place of a dict and an object for each token.
                flat_logprobs=True,
            )
            for seed, most in zip(seeds, room)
        ]
        inputs = [{"prompt_token_ids": prompts[i].tolist()} for i in range(len(prompts))]
        self._wake()
        outputs = self.llm.generate(inputs, params, use_tqdm=False, lora_request=self._adapter)
        return _read([output.outputs[0] for output in outputs], margins)

    def rest(self) -> None:
        """Of an engine that sleeps: move the weights to the machine's memory and drop the cache,
        until the next call.
        """
        if self.sleeps:
            self.llm.sleep(level=1)

    def comparable(self, sampling: Sampling) -> bool:
        """Whether log-probabilities are of the whole tempered distribution, as the trainer's are.

        With top_p or top_k vLLM takes them over the tokens that are left.
        """
        # Raw and processed log-probabilities are the same at temperature 1, and the trainer takes
        # the plain distribution where sampling is greedy.
        plain = sampling.temperature in (0, 1) or self._tempered
        return plain and sampling.top_p == 1 and not sampling.top_k

    def _wake(self) -> None:
        if self.llm is None:
            raise RuntimeError("engine: it was stopped, so a new policy is needed to sample")
        if self.sleeps and self.llm.llm_engine.is_sleeping():
            self.llm.wake_up()

    def _reload(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights of vLLM's model by those of these names."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

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


def make_room(is_unsloth: bool = False) -> None:
    """End the engine that was started last; ValueError where a policy still uses one.

    Those of Unsloth do not end, so that another of Unsloth may stand beside them.
    """
    _LATEST.clear()
    gc.collect()  # runs and policies that are in use no more may hold one another
    if any(engine.stops or not is_unsloth for engine in _RUNNING):
        raise ValueError(
            "engine='vllm': an engine with other settings is in use in this process, and vLLM "
            "allows one; call policy.engine.stop() of the run that has it (one of Unsloth's cannot "
            "be stopped: take another process)"
        )


def _shut_down(llm: Any) -> None:
    """Free vLLM's weights and cache."""
    # Memory that sleeps is not mapped, and freeing it would fail.
    if llm.llm_engine.is_sleeping():
        llm.wake_up()
    llm.llm_engine.engine_core.shutdown()


def has_many_sequences() -> bool:
    """Whether vLLM decodes `MANY` responses at once here.

    So it does from 70 GiB on, but for the A100. Graphs it has for at most 512 unless it is told.
    """
    if not torch.cuda.is_available() or "A100" in torch.cuda.get_device_name():
        return False
    return torch.cuda.mem_get_info()[1] >= 70 * 2**30


def _allow_sleep() -> None:
    """Let vLLM make memory that can sleep where PyTorch has expandable segments switched on.

    PyTorch refuses such memory while they are on. vLLM switches them off for that long, but looks
    for the setting under the older name of the variable, while Unsloth writes it under the newer.
    """
    setting = os.environ.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:True" in setting:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting


def _read(completions: list[Any], margins: bool) -> tuple[Samples, Ragged | None]:
    """What vLLM returns, as `Engine.respond` does."""
    for each in completions:
        # Anything else is no whole response of the model, and would be rewarded as a short one.
        if each.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a response by {each.finish_reason!r}")
    # All numbers of a completion stand in one list. Those of a position begin with the token that
    # was drawn; the most likely tokens follow, where they were asked for.
    numbers = [np.asarray(each.logprobs.logprobs, dtype=np.float64) for each in completions]
    starts = [np.asarray(each.logprobs.start_indices, dtype=np.int64) for each in completions]
    pairs = list(zip(numbers, starts))
    samples = Samples.by_engine(
        Ragged.of([each.token_ids for each in completions], np.int32),
        Ragged.of([number[start] for number, start in pairs], np.float32),
        np.array([each.finish_reason == "length" for each in completions], dtype=bool),
    )
    if not margins:
        return samples, None
    rows = [np.exp(number[start + 1]) - np.exp(number[start + 2]) for number, start in pairs]
    return samples, Ragged.of(rows, np.float32)
