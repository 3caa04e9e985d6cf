"""Which tasks a pretrained model of 135 million parameters can learn on a CPU.

A task is of use for comparing methods when the model is right now and then at the start, from .1 to
.4 of the time, and when GRPO then takes it to .8 or is still rising after 100 rounds. Here are a
dozen candidates of three kinds: sums and the like, stories of grade school from templates written
for this file, and families of reasoning-gym with easy settings. Held-out problems are others than
those that are trained on. A response to a sum has room for 12 tokens, since the model then says a
number or does not; where it explains itself, it has more.

In the folder `notebooks`, with the model that `examples/smollm2.py` writes:

    python -m papers.ladder starts --model ../build/smollm2 --out ../runs/ladder
    python -m papers.ladder curves --model ../build/smollm2 --out ../runs/ladder --rounds 100
    python -m papers.ladder table --out ../runs/ladder --to ../data/ladder-candidates.csv

`starts` measures every candidate once, `curves` trains on those whose start is in the range, and
`table` writes what there is so far. Each may be stopped at any time; the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench import Run, labs, load, methods, problems
from workbench.evaluation import evaluate
from workbench.policies import Sampling
from workbench.pools import MOST_MISSES, Pool, Problem, split_of
from workbench.records import exists
from workbench.utils.seeding import generator

__all__ = ["CANDIDATES", "RANGE", "Candidate", "lab", "table"]

RANGE = (0.1, 0.4)  # of the start
TRAIN, HELD_OUT = 256, 64
SAMPLES = 2  # responses to a held-out problem
PER_ROUND, ROLLOUTS = 4, 8
LEARNING_RATE = 1e-4
BETWEEN = 10  # rounds between two evaluations
ONLY = " Answer with the number only."

Rng = np.random.Generator
Question = tuple[str, int]


@dataclass(frozen=True)
class Candidate:
    """A task that may become a rung of the ladder.

    Attributes
    ----------
    kind : str
    make : function
        make(split, n) returns the pool of n problems of "train" or "heldout".
    max_new_tokens : int
        The longest response.
    """

    kind: str
    make: Callable[[str, int], Pool]
    max_new_tokens: int = 12


def drawn(name: str, question: Callable[[Rng], Question], split: str, n: int) -> Pool:
    """A pool of n different questions of a split, or of all that there are, with their answers."""
    rng = generator(0, name, split)
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < n and misses < MOST_MISSES:
        text, answer = question(rng)
        if split_of(text) == split and text not in found:
            found[text] = Problem(f"{name}/{split}/{len(found)}", text + ONLY, str(answer))
            misses = 0
        else:
            misses += 1
    return Pool(found.values())


def own(kind: str, name: str, question: Callable[[Rng], Question], room: int = 12) -> Candidate:
    """A candidate whose questions are drawn here."""
    return Candidate(kind, lambda split, n: drawn(name, question, split, n), room)


def gym(name: str, room: int = 12, **options: Any) -> Candidate:
    """A family of reasoning-gym, whose answers are numbers."""

    def make(split: str, n: int) -> Pool:
        return problems.reasoning_gym(name, n, split=split, instruction=ONLY, **options)

    return Candidate("reasoning-gym", make, room)


def whole(rng: Rng, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(rng.integers(low, high + 1))


def addition(low: int, high: int) -> Callable[[Rng], Question]:
    """What is 7 + 5?"""

    def question(rng: Rng) -> Question:
        a, b = whole(rng, low, high), whole(rng, low, high)
        return f"What is {a} + {b}?", a + b

    return question


def subtraction(rng: Rng) -> Question:
    """What is 17 - 5?"""
    a = whole(rng, 3, 20)
    b = whole(rng, 1, a - 1)
    return f"What is {a} - {b}?", a - b


def product(rng: Rng) -> Question:
    """What is 7 times 5?"""
    a, b = whole(rng, 2, 12), whole(rng, 2, 12)
    return f"What is {a} times {b}?", a * b


def chain(rng: Rng) -> Question:
    """What is 7 + 5 - 3?"""
    a, b = whole(rng, 1, 9), whole(rng, 1, 9)
    c = whole(rng, 1, min(9, a + b))
    return f"What is {a} + {b} - {c}?", a + b - c


def missing(rng: Rng) -> Question:
    """Which number makes 7 + ? = 12 true?"""
    a, b = whole(rng, 1, 9), whole(rng, 1, 9)
    return f"Which number makes {a} + ? = {a + b} true?", b


def largest(rng: Rng) -> Question:
    """Which of these numbers is the largest: 17, 90, 42, 55?"""
    numbers = rng.choice(np.arange(10, 100), 4, replace=False)
    return f"Which of these numbers is the largest: {', '.join(map(str, numbers))}?", numbers.max()


NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps")


def story(rng: Rng) -> Question:
    """One step: something is added, taken away or comes several times."""
    first, second = rng.choice(NAMES, 2, replace=False)
    thing = rng.choice(THINGS)
    a, b = whole(rng, 2, 12), whole(rng, 2, 9)
    stories = [
        (f"{first} has {a} {thing}. {second} brings {b} more. How many are there now?", a + b),
        (
            f"There were {a + b} {thing} on the table. {first} took {b} of them. "
            "How many are left on the table?",
            a,
        ),
        (f"{first} fills {b} boxes with {a} {thing} each. How many {thing} is that?", a * b),
    ]
    return stories[whole(rng, 0, len(stories) - 1)]


def longer_story(rng: Rng) -> Question:
    """Two steps, one after the other."""
    first, second = rng.choice(NAMES, 2, replace=False)
    thing = rng.choice(THINGS)
    a, b, c = whole(rng, 5, 12), whole(rng, 2, 9), whole(rng, 1, 4)
    stories = [
        (
            f"{first} has {a} {thing} and finds {b} more. Then {first} gives {c} of them to "
            f"{second}. How many {thing} does {first} have now?",
            a + b - c,
        ),
        (
            f"{first} buys {c} bags with {b} {thing} in each and already had {a} at home. "
            f"How many {thing} does {first} have in all?",
            c * b + a,
        ),
        (
            f"{first} has {a} {thing}. {second} has {b} more than {first}. "
            "How many do they have together?",
            2 * a + b,
        ),
    ]
    return stories[whole(rng, 0, len(stories) - 1)]


CANDIDATES = {
    "additions to 20": own("numbers", "additions-20", addition(1, 20)),
    "additions of two digits": own("numbers", "additions-99", addition(10, 99)),
    "subtractions to 20": own("numbers", "subtractions-20", subtraction),
    "products to 12": own("numbers", "products-12", product),
    "two operations": own("numbers", "two-operations", chain),
    "the missing number": own("numbers", "missing", missing),
    "the largest of four": own("numbers", "largest", largest),
    "stories of one step": own("stories", "stories-1", story, 40),
    "stories of two steps": own("stories", "stories-2", longer_story, 40),
    "chain_sum": gym("chain_sum", min_terms=2, max_terms=3, min_digits=1, max_digits=1),
    "letter_counting": gym("letter_counting", 40, min_words=3, max_words=6),
    "gcd": gym("gcd", 40, min_value=2, max_value=40),
    "gsm_symbolic": gym("gsm_symbolic", 160),
}


def lab(name: str, model: str | Path, temperature: float = 1.0, **options: Any) -> Any:
    """The lab of a candidate: LoRA on the model in `model`, and problems that are held out."""
    candidate = CANDIDATES[name]
    return labs.transformers(
        str(model),
        candidate.make("train", TRAIN),
        candidate.make("heldout", HELD_OUT),
        template="chat",
        lora={"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
        sampling=Sampling(temperature=temperature, max_new_tokens=candidate.max_new_tokens),
        **{"dtype": "bfloat16", "samples": SAMPLES, **options},
    )


def measure_starts(model: Path, out: Path, names: list[str]) -> None:
    """Write `starts.csv`: how often the model is right on each candidate before any training."""
    path = out / "starts.csv"
    out.mkdir(parents=True, exist_ok=True)
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    left = [name for name in names if name not in {row["task"] for row in rows}]
    policy = None
    for name in left:
        its_lab = lab(name, model)
        policy = policy or its_lab.policy()
        with its_lab.verifier:
            scores = evaluate(
                policy,
                its_lab.held_out,
                its_lab.verifier,
                SAMPLES,
                sampling=its_lab.sampling,
                greedy=False,
            )
        start = scores["correct"].sum() / scores["samples"].sum()
        row = {"task": name, "problems": len(scores), "room": its_lab.sampling.max_new_tokens}
        rows.append(row | {"start": start, "tokens": scores["length"].mean()})
        pd.DataFrame(rows).to_csv(path, index=False)
        print(f"{name}: {start:.3f}", flush=True)


def candidates_in_range(out: Path) -> list[str]:
    """The candidates whose start is in the range, the one in its middle first."""
    starts = pd.read_csv(out / "starts.csv").set_index("task")["start"]
    middle = sum(RANGE) / 2
    inside = starts[starts.between(*RANGE)]
    return list((inside - middle).abs().sort_values(kind="stable").index)


def folder(out: Path, name: str) -> Path:
    """Where the run of a candidate is recorded."""
    return out / name.replace(" ", "-")


def train(model: Path, out: Path, rounds: int, names: list[str]) -> None:
    """GRPO on candidates, one after the other, until each has so many rounds."""
    for name in names:
        its_lab = lab(name, model)
        run = Run(
            its_lab,
            methods.grpo(ROLLOUTS),
            out=folder(out, name),
            problems_per_round=PER_ROUND,
            learning_rate=LEARNING_RATE,
            evaluate_every=BETWEEN,
            checkpoint_every=BETWEEN,
        )
        for _ in run.rounds(rounds):
            pass


def table(out: Path) -> pd.DataFrame:
    """One row a candidate: its start, and where its run has come so far.

    Columns: task, kind, problems (held out), room (tokens of a response at most), start, tokens (of
    a response, mean), rounds, reached (share right on held-out problems at the latest evaluation),
    at (its round) and curve (all evaluations of the run, from round 0 on).
    """
    frame = pd.read_csv(out / "starts.csv")
    frame.insert(1, "kind", [CANDIDATES[name].kind for name in frame["task"]])
    further = []
    for name in frame["task"]:
        path = folder(out, name)
        if not exists(path):
            further.append({"rounds": 0})
            continue
        record = load(path)
        curve = record.accuracy().set_index("round")["accuracy"]
        further.append(
            {
                "rounds": len(record.rounds),
                "reached": curve.iloc[-1],
                "at": curve.index[-1],
                "curve": " ".join(f"{share:.3f}" for share in curve),
            }
        )
    columns = ["rounds", "reached", "at", "curve"]
    return frame.join(pd.DataFrame(further, columns=columns).astype({"at": "Int64"}))


def main() -> None:
    """Measure starts, train, or write the table, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["starts", "curves", "table"])
    parser.add_argument("--model", type=Path, default=Path("../build/smollm2"))
    parser.add_argument("--out", type=Path, default=Path("../runs/ladder"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--only", nargs="+", choices=CANDIDATES, help="default: all, or all in the range"
    )
    parser.add_argument("--to", type=Path, default=Path("../data/ladder-candidates.csv"))
    asked = parser.parse_args()
    if asked.what == "starts":
        measure_starts(asked.model, asked.out, asked.only or list(CANDIDATES))
    elif asked.what == "curves":
        train(asked.model, asked.out, asked.rounds, asked.only or candidates_in_range(asked.out))
    else:
        table(asked.out).to_csv(asked.to, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
