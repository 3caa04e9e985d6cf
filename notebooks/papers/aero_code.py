"""AERO's setting for code on a small scale: four problems, programs in place of responses,
the sandbox that judges them, and a round as AERO allocates and selects.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd

import workbench as wb
from workbench.rollouts import Context, Rollouts
from workbench.rounds import play

__all__ = ["DISHONEST", "PROGRAMS", "one_round", "problems", "rewards", "sandbox"]

# A right program, a wrong one, tests, and how many of the programs that are handed in are right.
PROGRAMS: dict[str, tuple[str, str, list[tuple[str, str]], float]] = {
    "Print the sum of two whole numbers.": (
        "print(sum(map(int, input().split())))",
        "a, b = input().split()\nprint(a + b)",
        [("1 2\n", "3\n"), ("-5 5\n", "0\n")],
        0.9,
    ),
    "Print the words of a line in the opposite order.": (
        "print(*reversed(input().split()))",
        "print(input()[::-1])",
        [("one two\n", "two one\n"), ("a b c\n", "c b a\n")],
        0.3,
    ),
    "Print a whole number halved, rounded down.": (
        "print(int(input()) // 2)",
        "print(int(int(input()) / 2))",
        [("7\n", "3\n"), ("-3\n", "-2\n")],
        0.12,
    ),
    "Print how many letters of a word are vowels.": (
        "print(sum(letter in 'aeiou' for letter in input()))",
        "print(len(input()) // 2)",
        [("letters\n", "2\n"), ("rhythm\n", "0\n")],
        0.0,
    ),
}
DISHONEST = {
    "exits as if all were well": "import os\nos._exit(0)",
    "prints that it passed": "print('ok')",
    "looks for the tests": "print(open('tests.json').read())",
}


def problems() -> list[Any]:
    """The problems of `PROGRAMS`, read from a local file of APPS's form."""
    rows = []
    for number, (question, (_, _, tests, _)) in enumerate(PROGRAMS.items()):
        given, expected = map(list, zip(*tests))
        rows.append(
            {
                "id": number,
                "question": question,
                "solutions": "[]",
                "input_output": json.dumps({"inputs": given, "outputs": expected}),
                "difficulty": "introductory",
                "url": "",
                "starter_code": "",
            }
        )
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "apps.jsonl")
        file.write_text("\n".join(map(json.dumps, rows)))
        return list(wb.problems.hub("apps", "train", path=file, template="{prompt}"))


def sandbox() -> Any:
    """The verifier of code, without a sandbox where bubblewrap cannot run: the programs are those
    above, which are to be trusted.
    """
    try:
        return wb.verifiers.Code()
    except OSError:
        return wb.verifiers.Code(sandbox="none")


def rewards(verifier: Any, of_code: Sequence[Any]) -> pd.DataFrame:
    """The reward of right, wrong and dishonest programs, a row a kind and a column a problem."""
    found: dict[str, list[float]] = {}
    for problem in of_code:
        right, wrong, *_ = PROGRAMS[_question(problem)]
        for name, program in {"right": right, "wrong": wrong, **DISHONEST}.items():
            score = verifier.score([_fenced(program)], [problem.answer])
            found.setdefault(name, []).append(float(score.reward[0]))
    columns = [_question(problem) for problem in of_code]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns)


def one_round(method: Any, verifier: Any, of_code: Sequence[Any], seed: int = 0) -> pd.DataFrame:
    """A round of a method with programs in place of responses, right ones at a rate of their own.

    Parameters
    ----------
    method : Method
    verifier : of `sandbox`
    of_code : of `problems`
    seed : int

    Returns
    -------
    DataFrame, a row a problem
        rollouts, calls (of the sampler), right, and trained on.
    """
    rng = np.random.default_rng(seed)

    def hand_in(asked: Any, counts: Any, before: Any, stage: int) -> Rollouts:
        names, texts, answers = [], [], []
        for problem, count in zip(asked, counts):
            right, wrong, _, rate = PROGRAMS[_question(problem)]
            for is_right in rng.random(int(count)) < rate:
                program = right if is_right else rng.choice([wrong, *DISHONEST.values()])
                names.append(problem.id)
                texts.append(_fenced(program))
                answers.append(problem.answer)
        scores = verifier.score(texts, answers)
        return Rollouts(
            problem=np.array(names),
            text=np.array(texts, dtype=object),
            reward=scores.reward,
            correct=scores.reward == 1,
            stage=np.full(len(names), stage),
        )

    played = play(method, list(of_code), Context(seed=seed), hand_in, lambda n, known: [])
    sampled = played.rollouts
    rows = {}
    for problem in of_code:
        mine = sampled.problem == problem.id
        rows[_question(problem)] = {
            "rollouts": int(mine.sum()),
            "calls": int(sampled.stage[mine].max() + 1),
            "right": int(sampled.correct[mine].sum()),
            "trained on": int(mine[played.rows].sum()),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _question(problem: Any) -> str:
    """The entry of `PROGRAMS` that a problem was made of; the hub adds how to read and print."""
    return next(question for question in PROGRAMS if question in problem.prompt)


def _fenced(program: str) -> str:
    return f"```python\n{program}\n```"
