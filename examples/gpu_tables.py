"""The tables of docs/guides/gpu.md: what fits on one GPU, what to choose, and the least seconds.

`python -m examples.gpu_tables` prints them. Nothing in them is measured: the gigabytes are those of
`workbench.policies.memory`, and the seconds follow from the published speed of each GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.policies import memory

MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B")
LENGTH = 1024  # tokens of prompt and response
LEAST_AT_ONCE = 64  # responses that vLLM has to hold, with half of their tokens on average
SHARES = [each / 100 for each in range(50, 5, -5)]  # of the GPU's memory, for vLLM
# The round whose seconds are computed: PODS with 16 problems, 64 rollouts of which it keeps 16.
PROBLEMS, SAMPLED, KEPT, TOKENS = 16, 64, 16, 512
# Shares of a GPU's speed that products reach: in decoding, and in an update.
DECODING, UPDATE = 0.5, 0.4


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker describes it: its memory in bytes, and what it does in a second."""

    name: str
    memory: float
    operations: float
    bandwidth: float
    at_once: int  # responses that vLLM decodes at once

    @property
    def label(self) -> str:
        """How the guide calls it."""
        return f"{self.memory / memory.GB:.0f} GB ({self.name})"


GPUS = (
    Gpu("RTX 4090", 24e9, 165e12, 1.0e12, 256),
    Gpu("L40S", 48e9, 362e12, 0.86e12, 256),
    Gpu("H100", 80e9, 989e12, 3.35e12, 1024),
    Gpu("H200", 141e9, 989e12, 4.8e12, 1024),
)

# Ways to train, from the one that takes the most memory to the one that takes the least.
WAYS: dict[str, dict[str, Any]] = {
    "all parameters": {"lora_rank": 0, "dtype": "float32", "shares_weights": False},
    "LoRA, both labs": {"shares_weights": False},
    "LoRA, Unsloth": {},
    "4 bits, Unsloth": {"load_in_4bit": True},
}


def parts_of(model: str, way: str, sampler_bytes: float) -> dict[str, int]:
    """The estimate of `memory` with so many bytes for vLLM."""
    return memory.estimate(model, max_length=LENGTH, sampler_bytes=sampler_bytes, **WAYS[way])


def of_a_token(model: str) -> int:
    """Bytes of the keys and values of a token, in 16 bits."""
    sizes = memory.shape(model)
    return 2 * sizes.layers * sizes.kv_heads * sizes.head * 2


def choice(gpu: Gpu, model: str) -> tuple[str, float] | None:
    """The way that takes the most memory of those that fit, and vLLM's share of the GPU.

    The share is the largest one up to a half that leaves the trainer its room.
    """
    for way, options in WAYS.items():
        weights = 2 * memory.shape(model).parameters
        if options.get("load_in_4bit"):
            weights = parts_of(model, way, 1)["weights"]
        needed = weights + LEAST_AT_ONCE * LENGTH / 2 * of_a_token(model)
        for share in SHARES:
            if share * gpu.memory < needed:
                break
            total = sum(parts_of(model, way, share * gpu.memory).values())
            if total <= memory.SHARE * gpu.memory:
                return way, share
    return None


def seconds(gpu: Gpu, model: str, way: str, share: float) -> tuple[float, float]:
    """The least seconds of sampling and of the update of a round."""
    parameters = memory.shape(model).parameters
    weights = parts_of(model, way, 1)["weights"] if "4 bits" in way else 2 * parameters
    # A response holds half of its tokens on average.
    held = of_a_token(model) * TOKENS / 2
    rollouts = PROBLEMS * SAMPLED
    at_once = min(rollouts, gpu.at_once, (share * gpu.memory - weights) / held)
    reading = (weights + at_once * held) / gpu.bandwidth
    computing = 2 * parameters * at_once / (DECODING * gpu.operations)
    sampling = max(reading, computing) * TOKENS * rollouts / at_once
    # Forward, once more, and the gradients: of the states, and of the weights that are trained.
    operations = 8 if way == "all parameters" else 6
    trained = PROBLEMS * KEPT * TOKENS
    update = operations * parameters * trained / (UPDATE * gpu.operations)
    return sampling, update


def what_fits() -> list[list[str]]:
    """Rows of the table of gigabytes beside vLLM: weights and all that an update needs."""
    ways: dict[str, dict[str, Any]] = {
        "LoRA, 4 bits": {"load_in_4bit": True},
        "LoRA, bfloat16": {},
        "LoRA, float32": {"dtype": "float32"},
        "all parameters, float32": {"dtype": "float32", "lora_rank": 0},
    }
    rows = [["model", *ways, "keys and values of a response of 1,024 tokens"]]
    for model in MODELS:
        # vLLM's own part, whatever it is, is left out.
        sizes = [memory.estimate(model, sampler_bytes=1, **options) for options in ways.values()]
        beside = [sum(each.values()) - each["keys and values"] for each in sizes]
        cache = LENGTH * of_a_token(model) / memory.GB
        rows.append([model, *(f"{each / memory.GB:.1f}" for each in beside), f"{cache:.3f}"])
    return rows


def what_to_choose() -> list[list[str]]:
    """Rows of the table of choices, with vLLM's share and the seconds of sampling and update."""
    rows = [["GPU", *MODELS]]
    for gpu in GPUS:
        cells = []
        for model in MODELS:
            found = choice(gpu, model)
            text = "does not fit"
            if found:
                sampling, update = seconds(gpu, model, *found)
                text = f"{found[0]}, {found[1]:.2f}: {sampling:.0f} + {update:.0f} s"
            cells.append(text)
        rows.append([gpu.label, *cells])
    return rows


def markdown(rows: list[list[str]]) -> str:
    """A table as the guide has it."""
    lines = [" | ".join(row) for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    print(markdown(what_fits()), markdown(what_to_choose()), sep="\n\n")
