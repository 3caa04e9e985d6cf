"""How much faster vLLM samples many runs together than one after the other, an adapter for each.

    python -m examples.many_adapters PATH_OF_A_MODEL

A trial is many runs on one base model, and each is an adapter. Every run samples four problems with
eight responses each. The same requests are sent in one call for all runs, and in one call for each
run; both are timed in turns, and the medians are printed as a table. Times are those of the
processor, so that other work on the machine does little to them; a GPU would need the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

PROBLEMS = 4
RESPONSES = 8
TOKENS = 16  # of each response; none ends before
RANK = 16
RUNS = (1, 2, 4, 8)


def write_adapters(model: str, folder: Path, count: int) -> list[Path]:
    """Adapters of small random weights, as they are after some steps of training."""
    paths = []
    for number in range(count):
        torch.manual_seed(number)
        base = AutoModelForCausalLM.from_pretrained(model)
        adapted = get_peft_model(base, LoraConfig(r=RANK, target_modules="all-linear"))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)
        paths.append(folder / str(number))
        adapted.save_pretrained(paths[-1])
    return paths


def prompts(model: str) -> list[list[int]]:
    """Token ids of the questions of one run, each as often as it has responses."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    questions = [
        f"What is {7 + number} + {11 - number}? Answer in a word." for number in range(PROBLEMS)
    ]
    chats = [[{"role": "user", "content": question}] for question in questions]
    ids = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]
    return [prompt for prompt in ids for _ in range(RESPONSES)]


def main() -> None:
    """Print a row for each number of runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", help="of the sampler's weights")
    parser.add_argument("--times", type=int, default=3, help="that each call is timed")
    parser.add_argument("--plain", action="store_true", help="the base model for all, no adapters")
    asked = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Imported late, since vLLM reads the setting above.
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path] = []
        options: dict[str, Any] = {}
        if not asked.plain:
            paths = write_adapters(asked.model, Path(folder), max(RUNS))
            options = {"enable_lora": True, "max_loras": max(RUNS), "max_lora_rank": RANK}
        llm = LLM(
            asked.model,
            dtype=asked.dtype,
            enforce_eager=True,
            max_model_len=512,
            gpu_memory_utilization=0.3,
            enable_prefix_caching=False,
            **options,
        )
        adapters = [LoRARequest(path.name, 1 + k, str(path)) for k, path in enumerate(paths)]
        adapters = adapters or [None] * max(RUNS)
        asked_for = [{"prompt_token_ids": ids} for ids in prompts(asked.model)]
        sampling = SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True)

        def seconds(runs: list) -> float:
            """Processor time of one call for all the given runs."""
            requests = [request for _ in runs for request in asked_for]
            lora = [run for run in runs for _ in asked_for]
            started = time.process_time()
            llm.generate(requests, sampling, lora_request=lora, use_tqdm=False)
            return time.process_time() - started

        seconds(adapters)  # every adapter is read once
        print(
            "| runs | one after the other, tokens a second | together | times | peak memory, GB |"
        )
        print("| --- | --- | --- | --- | --- |")
        for count in RUNS:
            alone, together = [], []
            for _ in range(asked.times):
                alone.append(sum(seconds([run]) for run in adapters[:count]))
                together.append(seconds(adapters[:count]))
            tokens = count * len(asked_for) * TOKENS
            first, second = statistics.median(alone), statistics.median(together)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"| {count} | {tokens / first:.0f} | {tokens / second:.0f} | {first / second:.2f} "
                f"| {peak:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
