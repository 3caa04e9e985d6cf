"""The settings of a first GPU run, and where its files lie."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

PARTS = ("doctor", "model", "grpo", "pods", "trl")
# GRPO and the methods of the five papers, each of which runs at every rate.
METHODS = ("grpo", "pods", "ar3po", "knapsack", "aero", "cbs")
PAPERS = "papers"  # the folder of their records
SIZES = ("tiny", "qwen2", "smollm2")
PROBLEMS = ("arithmetic", "gsm_symbolic")
OF_A_PIECE = ("out", "seconds")  # settings that may differ from piece to piece
# Counts, and the least that each of them can be: an advantage compares two rollouts.
LEAST = {
    "steps": 1,
    "rounds": 1,
    "problems_per_round": 1,
    "sampled": 2,
    "kept": 2,
    "paper_rounds": 1,
    "new_tokens": 1,
    "max_length": 1,
    "lora_rank": 1,
}
MORE_TO_DO = 75  # the exit status of a piece that ended before the work did


@dataclass(frozen=True)
class Settings:
    """What is run. Every part reads the same settings, so a piece goes on where one has stopped.

    Attributes
    ----------
    out : Path
        Where records and the report go.
    model : str
        A directory or a name on the hub; "" for a model that is made here.
    size : {"tiny", "qwen2", "smollm2"}
        Of the model that is made.
    steps : int
        Training steps of the model that is made.
    problems : str
        "arithmetic", "gsm_symbolic" (of reasoning-gym), or a JSONL file with prompt and answer.
    device : {"cuda", "cpu"}
    rounds, problems_per_round : int
    sampled, kept : int
        Rollouts of a problem, and how many of them PODS trains on. GRPO trains on all. Beside the
        other papers GRPO samples as many as PODS keeps, and so does Knapsack RL on average.
    rates : list of float
        Learning rates of the papers' methods.
    paper_rounds : int
        Rounds of each of their runs.
    new_tokens : int
        Of a response.
    max_length : int
        Tokens of prompt and response.
    lora_rank : int
    seconds : float
        That a call works at most.
    """

    out: Path
    model: str
    size: str
    steps: int
    problems: str
    device: str
    rounds: int
    problems_per_round: int
    sampled: int
    kept: int
    rates: list[float]
    paper_rounds: int
    new_tokens: int
    max_length: int
    lora_rank: int
    seconds: float

    @property
    def model_path(self) -> str:
        """The model that is trained."""
        return self.model or str(self.out / "model")

    @property
    def papers(self) -> dict[str, tuple[str, float]]:
        """Method and learning rate of the papers' runs, by name."""
        return {f"{method}-{rate:g}": (method, rate) for rate in self.rates for method in METHODS}

    @property
    def parts(self) -> list[str]:
        """All that is to do, in this order."""
        return [*PARTS, *self.papers, "report"]

    @property
    def of_all_pieces(self) -> dict[str, Any]:
        """The settings that every piece has to have alike, since what is done is not done again."""
        return {name: value for name, value in vars(self).items() if name not in OF_A_PIECE}

    def refusal(self) -> str | None:
        """Why these settings cannot be run, None if they can."""
        wrong = self.wrong_number()
        if wrong:
            return wrong
        if self.device == "cuda" and not has_cuda():
            return "--device cuda: torch finds no CUDA device here; --device cpu does without one"
        if self.problems not in PROBLEMS and not Path(self.problems).is_file():
            return f"--problems {self.problems}: {' or '.join(PROBLEMS)}, or a file, is needed"
        asked = self.of_all_pieces
        before = read(self.file("settings")) or asked
        changed = [name for name in asked if asked[name] != before.get(name)]
        if changed:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            return f"--out {self.out} holds a first run with another {options}; name another folder"
        return self.too_small_model()

    def too_small_model(self) -> str | None:
        """Why the model has no room for prompt and response, None if it has or is made here."""
        if not self.model:
            return None
        from workbench.policies import checks

        try:
            config, _ = checks.load_configuration(self.model, None, "{prompt}")
            checks.check_length(config, self.max_length)
        except (OSError, ValueError) as error:
            return f"--model {self.model}: {error}"
        return None

    def wrong_number(self) -> str | None:
        """What is wrong with the first wrong count or rate, None if all can be run."""
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value < least:
                return f"--{name.replace('_', '-')} {value}: {least} or more is needed"
        if self.new_tokens >= self.max_length:
            return f"--new-tokens {self.new_tokens}: a prompt needs room within --max-length too"
        if self.kept > self.sampled:
            return f"--kept {self.kept}: no more than --sampled {self.sampled} can be kept"
        for rate in self.rates:
            if not 0 < rate < inf:
                return f"--rates {rate:g}: a learning rate above 0 is needed"
        return None

    def file(self, name: str) -> Path:
        """The JSON file that a part leaves behind."""
        return self.out / f"{name}.json"


def parser() -> argparse.ArgumentParser:
    """The arguments of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m examples.gpu_first_run",
        description="The first run on a GPU, in pieces that go on where the last one stopped.",
    )
    made.add_argument("--out", type=Path, default=Path("data/runs/gpu"))
    made.add_argument("--model", default="", help="directory or hub name; default: one made here")
    made.add_argument("--size", choices=SIZES, default="qwen2", help="of the model made here")
    made.add_argument("--steps", type=int, default=1500, help="to train the model made here")
    made.add_argument("--problems", default="arithmetic", help="or gsm_symbolic, or a JSONL file")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--problems-per-round", type=int, default=16)
    made.add_argument("--sampled", type=int, default=64)
    made.add_argument("--kept", type=int, default=16)
    made.add_argument("--rates", type=float, nargs="+", default=[1e-5, 4e-5], help="of the papers")
    made.add_argument("--paper-rounds", type=int, default=20)
    made.add_argument("--new-tokens", type=int, default=512)
    made.add_argument("--max-length", type=int, default=1024)
    made.add_argument("--lora-rank", type=int, default=64)
    made.add_argument("--seconds", type=float, default=540, help="that a call works at most")
    made.add_argument("--part", help="only this part, in this very process")
    return made


def engine(device: str) -> tuple[str, bool]:
    """The lab and whether vLLM samples, by what is installed."""
    has_vllm = find_spec("vllm") is not None
    if device == "cpu":
        return "transformers", False
    return ("unsloth" if find_spec("unsloth") else "transformers"), has_vllm


def has_cuda() -> bool:
    """Whether torch finds a GPU."""
    import torch

    return torch.cuda.is_available()


def template_of(model: str) -> str:
    """ "chat" where the tokenizer has a chat template, and the bare prompt otherwise."""
    from transformers import AutoTokenizer

    return "chat" if AutoTokenizer.from_pretrained(model).chat_template else "{prompt}"


def problem_sets(settings: Settings) -> tuple[Any, Any]:
    """The problems to train on and the held-out ones."""
    import workbench as wb

    if settings.problems == "arithmetic":
        training = wb.problems.arithmetic(512, levels=(1, 2, 3))
        return training, wb.problems.arithmetic(64, levels=(1, 2, 3), split="heldout")
    if settings.problems == "gsm_symbolic":
        training = wb.problems.reasoning_gym("gsm_symbolic", 512)
        return training, wb.problems.reasoning_gym("gsm_symbolic", 64, split="heldout")
    whole = wb.problems.from_file(settings.problems)
    # The last problems of the file are held out, at most 64 of them and at most a fourth.
    first = len(whole) - min(64, len(whole) // 4)
    rows = [{"prompt": each.prompt, "answer": each.answer} for each in whole]
    return wb.problems.from_rows(rows[:first]), wb.problems.from_rows(rows[first:])


def write(path: Path, contents: Any) -> None:
    """Write JSON, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(contents, indent=1) + "\n")
    beside.replace(path)


def read(path: Path) -> Any:
    """The contents of a JSON file, None where there is none."""
    return json.loads(path.read_text()) if path.is_file() else None
