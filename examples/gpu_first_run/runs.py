"""Runs by this package: GRPO and PODS on LoRA, and what they take of time and memory."""

from __future__ import annotations

import resource
import time
from typing import Any

from examples.gpu_first_run.settings import (
    PAPERS,
    Settings,
    engine,
    problem_sets,
    read,
    template_of,
    write,
)

# What samples in the lab "transformers", by whether vLLM is there.
ENGINES = {False: "transformers", True: "vllm"}


def doctor(settings: Settings) -> bool:
    """Write what `python -m workbench doctor` says of this machine and the model."""
    from workbench.cli import doctor as checks

    lab, has_vllm = engine(settings.device)
    sizes = {
        "max_length": settings.max_length,
        "lora_rank": settings.lora_rank,
        "rollouts": settings.sampled * settings.problems_per_round,
        "dtype": dtype_of(settings),
    }
    # A model that is made later has no configuration yet, and is small.
    told = checks.report(
        lab,
        settings.model or None,
        fast_inference=has_vllm,
        engine=ENGINES[has_vllm],
        **sizes,
    )
    write(settings.file("doctor"), told)
    print(checks.text(told))
    if not has_room(settings):
        raise MemoryError(f"--model {settings.model} does not fit this machine, see above")
    return True


def has_room(settings: Settings) -> bool:
    """Whether doctor has not found that the model does not fit."""
    told = (read(settings.file("doctor")) or {}).get("model") or {}
    return told.get("fits", True)


def dtype_of(settings: Settings) -> str:
    """The precision of the weights, which stay as they are under the adapter."""
    return "float32" if settings.device == "cpu" else "bfloat16"


def make_lab(settings: Settings) -> Any:
    """The lab by what is installed: Unsloth with vLLM, either of them, or transformers alone."""
    kind, has_vllm = engine(settings.device)
    if kind == "unsloth":
        # Before transformers and peft, which it changes.
        import unsloth  # noqa: F401

    import workbench as wb

    shared = {
        "template": template_of(settings.model_path),
        "sampling": wb.policies.Sampling(max_new_tokens=settings.new_tokens),
        "samples": 4,
    }
    problems = problem_sets(settings)
    if kind == "unsloth":
        return wb.labs.unsloth(
            settings.model_path,
            *problems,
            lora_rank=settings.lora_rank,
            max_length=settings.max_length,
            fast_inference=has_vllm,
            **shared,
        )
    rank = settings.lora_rank
    return wb.labs.transformers(
        settings.model_path,
        *problems,
        lora={"r": rank, "lora_alpha": rank, "target_modules": "all-linear"},
        dtype=dtype_of(settings),
        device=settings.device,
        engine=ENGINES[has_vllm],
        max_length=settings.max_length if has_vllm else None,
        **shared,
    )


def train(settings: Settings, name: str) -> bool:
    """Go on with a run until it is complete or the time is over. True when it is complete."""
    started = time.monotonic()
    import workbench as wb

    rounds = settings.rounds
    place = settings.out / name
    method, learning_rate = name, None
    if name in settings.papers:
        rounds = settings.paper_rounds
        place = settings.out / PAPERS / name
        method, learning_rate = settings.papers[name]
    if wb.records.exists(place) and wb.load(place).is_packed:
        return True
    run = wb.Run(
        make_lab(settings),
        make_method(settings, method, beside_papers=name in settings.papers),
        out=place,
        problems_per_round=settings.problems_per_round,
        learning_rate=learning_rate,
        evaluate_every=max(1, rounds // 4) if name in settings.papers else rounds,
        checkpoint_every=1,
    )
    path = settings.file(f"memory-{name}")
    peaks = read(path) or {}
    for row in run.rounds(rounds, progress=False):
        peaks = largest(peaks, memory(settings.device))
        write(path, peaks)
        print(
            f"{name} round {row['round']}: reward {row['reward']:.3f}, {row['seconds']:.1f} s",
            flush=True,
        )
        # Another round, with what is written and evaluated after it, would take too long.
        if time.monotonic() - started + 2 * row["seconds"] > settings.seconds:
            break
    return run.round >= rounds


def make_method(settings: Settings, name: str, beside_papers: bool) -> Any:
    """The method of a run.

    GRPO samples as much as PODS where the two are compared with TRL. Beside the papers it samples
    as many rollouts as PODS keeps, and Knapsack RL has the same budget.
    """
    import workbench as wb

    if name == "grpo":
        return wb.methods.grpo(settings.kept if beside_papers else settings.sampled)
    if name == "pods":
        return wb.methods.pods(settings.sampled, settings.kept)
    if name == "knapsack":
        return wb.methods.knapsack(settings.kept)
    if name == "cbs":
        return wb.methods.cbs(n=settings.kept, planned=settings.paper_rounds)
    # Their papers say how many rollouts they sample.
    return getattr(wb.methods, name)()


def memory(device: str) -> dict[str, int]:
    """The largest memory so far, in bytes: of this process, and of the GPU.

    allocated is what PyTorch had given out at once; used is what all programs together have of the
    GPU at this moment, vLLM's share included.
    """
    # Linux counts in units of 1,024 bytes.
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        peaks["allocated"] = torch.cuda.max_memory_allocated()
        peaks["used"] = total - free
    return peaks


def largest(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """The larger of both for each name."""
    return {name: max(first.get(name, 0), value) for name, value in second.items()}
