"""A PODS round 32 -> 8 of a model of the size of SmolLM2-135M, before and after, by phase.

Two checkouts of the package do the same work in turns, each in a process of its own with one
thread, so that whatever else the machine does falls on both:

    python -m tests.bench.before_after --before ../old --out data/round-135m.csv

The model is made here: the configuration of SmolLM2-135M with random weights, and an adapter of
rank 16. Rollouts have random tokens and lengths, the same ones in both checkouts: what scoring and
updating cost depends on sizes, and not on what the weights say. Sampling is left out, since
`make bench` compares it.

Seconds are those of the process, so other programs do not count. The table is written after every
repeat, so an interrupted measurement keeps what it has.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLED = 32  # rollouts of each problem
KEPT = 8
PROMPTS = (24,)  # tokens of the prompt of each problem: one problem a round, as in PODS
RESPONSES = (4, 12)  # the shortest and the longest response
RANK = 16
# The phases of both checkouts, and what the present one can do in the place of each.
BEFORE = ("rescore all sampled rows", "update, padded rows")
NOW = (
    "rescore all sampled rows",
    "rescore kept rows",
    "update, padded rows",
    "update, packed rows",
    "update, packed rows and shared prompts",
)


def make_model(folder: Path) -> None:
    """Write a random model with the sizes of SmolLM2-135M, and the tokenizer of the tiny model."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from workbench.labs import shipped

    tokenizer = AutoTokenizer.from_pretrained(shipped("models/tiny"))
    config = LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49_152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Work:
    """The phases of a round by the checkout that this process imports."""

    def __init__(self, folder: str, is_before: bool) -> None:
        import torch

        from workbench.policies.transformers import TransformersPolicy

        torch.set_num_threads(1)
        self.is_before = is_before
        lora = {"r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
        self.policy = TransformersPolicy.from_pretrained(folder, device="cpu", lora=lora)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-5)

    def rollouts(self, seed: int, distinct: bool = False):
        """The round's rollouts, the same in both checkouts.

        distinct: the first token of each prompt is another one, so that no two are the same.
        """
        import numpy as np

        from workbench.rollouts import Ragged, Rollouts

        rng = np.random.default_rng(seed)
        prompts = []
        problems = []
        for number, length in enumerate(PROMPTS):
            tokens = rng.integers(4, 40_000, length)
            for row in range(SAMPLED):
                first = [row + 4] if distinct else tokens[:1]
                prompts.append(np.concatenate([first, tokens[1:]]))
                problems.append(str(number))
        lengths = rng.integers(*RESPONSES, len(prompts), endpoint=True)
        responses = [rng.integers(4, 40_000, length) for length in lengths]
        logprobs = Ragged.of([np.full(length, -10.7) for length in lengths], np.float32)
        name = "logprobs" if self.is_before else "old_logprobs"
        return Rollouts(
            problem=np.array(problems),
            reward=np.zeros(len(problems)),
            prompt=Ragged.of(prompts, np.int32),
            response=Ragged.of(responses, np.int32),
            **{name: logprobs},
        )

    def kept(self, rollouts):
        """The first KEPT rollouts of each problem."""
        import numpy as np

        return rollouts.take(np.flatnonzero(np.arange(len(rollouts)) % SAMPLED < KEPT))

    def phase(self, name: str, seed: int) -> float:
        """Seconds of a phase."""
        job = self.job(name, seed)
        started = time.process_time()
        job()
        return time.process_time() - started

    def job(self, name: str, seed: int):
        """A phase as a function without arguments, all that it needs being made beforehand."""
        import numpy as np
        import torch

        from workbench.grpo import grpo_step
        from workbench.policies import Sampling

        if name.startswith("rescore"):
            rollouts = self.rollouts(seed)
            if name == "rescore kept rows":
                rollouts = self.kept(rollouts)
            if self.is_before:
                # There it was a part of `generate`, which turned gradients off.
                without_gradient = torch.no_grad()
                return without_gradient(lambda: self.policy._rescored(rollouts, Sampling()))
            return lambda: self.policy.rescored(rollouts)
        rollouts = self.kept(self.rollouts(seed, distinct=name == "update, packed rows"))
        advantages = np.where(np.arange(len(rollouts)) % 2 == 0, 1.0, -1.0)
        if not self.is_before:
            self.policy.layout = "packed" if "packed" in name else "padded"
        # Micro-batches of 2,048 tokens, so that padded rows are put beside rows of like length.
        return lambda: grpo_step(
            self.policy, self.optimizer, rollouts, advantages, micro_tokens=2048
        )


def work(folder: str, is_before: bool) -> None:
    """Answer lines of JSON, [phase, seed], by the seconds it took."""
    # Whatever a library prints goes to the errors, so that the answers stay alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    at_work = Work(folder, is_before)
    for line in sys.stdin:
        name, seed = json.loads(line)
        print(at_work.phase(name, seed), file=answers, flush=True)


def start(checkout: Path, folder: str, is_before: bool) -> subprocess.Popen:
    """A process that imports the package of a checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--work", folder]
    if is_before:
        command.append("--is-before")
    return subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def asked(process: subprocess.Popen, name: str, seed: int) -> float:
    """The seconds of a phase in such a process."""
    process.stdin.write(json.dumps([name, seed]) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"the process of {name!r} has ended")
    return float(answer)


def measure(before: Path, repeats: int, limit: float, out: Path, model: str | None) -> None:
    """Time every phase in both checkouts, and write the table after each repeat.

    No repeat begins after `limit` seconds. `model` is a directory that keeps the model for the next
    time.
    """
    started = time.monotonic()
    # (version, phase) to one number of seconds for each repeat.
    seconds: dict[tuple[str, str], list[float]] = {}
    here = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        folder = model or scratch
        if not (Path(folder) / "config.json").is_file():
            make_model(Path(folder))
        processes = {"before": start(before, folder, True), "now": start(here, folder, False)}
        for seed in range(repeats):
            if time.monotonic() - started > limit:
                break
            for version, names in (("before", BEFORE), ("now", NOW)):
                for name in names:
                    spent = asked(processes[version], name, seed)
                    seconds.setdefault((version, name), []).append(spent)
            write(table(seconds), out)
        for process in processes.values():
            process.stdin.close()
            process.wait()


# Part of a round: the phase before, and the phase now. None where nothing is left to do.
ROUND = (
    ("rescoring, one step a round", "rescore all sampled rows", None),
    ("rescoring, several steps a round", "rescore all sampled rows", "rescore kept rows"),
    ("rescoring of all rows, packed", "rescore all sampled rows", "rescore all sampled rows"),
    ("update, padded rows", "update, padded rows", "update, padded rows"),
    ("update, packed rows", "update, padded rows", "update, packed rows"),
    (
        "update, packed rows and shared prompts",
        "update, padded rows",
        "update, packed rows and shared prompts",
    ),
)


def table(seconds: dict[tuple[str, str], list[float]]) -> list[list[str]]:
    """Rows of the table: medians of the seconds before and now, and of the ratios."""
    rows = []
    for name, old, new in ROUND:
        before = seconds["before", old]
        now = [0.0] * len(before) if new is None else seconds["now", new]
        rows.append(_row(name, before, now))
    both = [sum(parts) for parts in zip(*(seconds["before", name] for name in BEFORE))]
    last = seconds["now", "update, packed rows and shared prompts"]
    rows.append(_row("both, one step a round", both, last))
    return rows


def _row(name: str, before: list[float], now: list[float]) -> list[str]:
    ratios = [new / old for old, new in zip(before, now)]
    numbers = [statistics.median(values) for values in (before, now, ratios)]
    return [name, *(f"{number:.3g}" for number in numbers), str(len(before))]


def write(rows: list[list[str]], out: Path) -> None:
    """The table as CSV."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part of a round", "before [s]", "now [s]", "now / before", "n"])
        writer.writerows(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of commit 656d0e3")
    parser.add_argument("--out", type=Path, default=Path("data/round-135m.csv"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=400, help="no repeat begins after this [s]")
    parser.add_argument("--model", help="a directory that keeps the model for the next time")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--is-before", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.is_before)
        return
    measure(given.before.resolve(), given.repeats, given.limit, given.out, given.model)
    print(given.out.read_text())


if __name__ == "__main__":
    main()
