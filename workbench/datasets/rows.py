"""Problems of your own: from rows in memory, or from a JSONL, JSON, CSV or parquet file.

`workbench.problems.from_rows` and `from_file` make a pool of them. All rows are checked before any
model is loaded: a training run that meets an unusable row after an hour would end there.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.policies.checks import check_model, lost_characters, offline_hint
from workbench.problems import Pool, Problem
from workbench.utils.validation import did_you_mean, is_number, one_of, shown

Row = Mapping[str, Any]

REPEATED = ("refuse", "drop")


def problems(
    rows: Iterable[Row],
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    level: str | None = None,
    template: str = "{prompt}",
    repeated: str = "refuse",
    verifier: Any = None,
    tokenizer: Any = None,
    source: str = "rows",
) -> list[Problem]:
    """Checked problems, in the order of the rows.

    The arguments are those of `workbench.problems.from_rows`; `source` is the name of the data in
    messages.
    """
    one_of("repeated", repeated, REPEATED)
    if not isinstance(template, str) or "{prompt}" not in template:
        raise ValueError(f"template={shown(template)}: a text with {{prompt}} in it is needed")
    # From cheap checks to dear ones. Repeats go before the verifier reads every answer.
    rows = _checked_rows(rows, source)
    _check_columns(rows, [name for name in (prompt, answer, level) if name is not None], source)

    made = [
        _problem(row, number, prompt, answer, level, template, source)
        for number, row in enumerate(rows)
    ]
    made = _distinct(made, repeated, source)
    _check_answers(made, verifier, source)
    if tokenizer is not None:
        _check_prompts(made, tokenizer, source)
    return made


def read(path: Any) -> list[dict[str, Any]]:
    """The rows of a file, each a dict from column to value."""
    path = Path(path)
    readers: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        ".jsonl": _read_jsonl,
        ".json": _read_json,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    if path.suffix not in readers:
        raise ValueError(f"path={str(path)!r}: a file ending in {', '.join(readers)} is needed")
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file")
    return readers[path.suffix](path)


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is no JSON ({error})") from None
    return rows


def _read_json(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON ({error})") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: a list of objects is needed; JSON lines belong in a .jsonl file")
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    # Everything stays text: "007" and "1e3" are answers as they stand there.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


# Checks


def _checked_rows(rows: Any, source: str) -> list[Row]:
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise ValueError(
            f"{source}={shown(rows)}: a list of dicts is needed, such as "
            "[{'prompt': '1+1=', 'answer': '2'}]"
        )
    rows = list(rows)
    if not rows:
        raise ValueError(f"{source}: there are no rows; at least one is needed")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ValueError(f"{source}: row {number} is {shown(row)}; a dict is needed")
    return rows


def _check_columns(rows: Sequence[Row], wanted: Sequence[str], source: str) -> None:
    for number, row in enumerate(rows):
        for column in wanted:
            if column not in row:
                there = [str(name) for name in row]
                raise ValueError(
                    f"{source}: row {number} has no column {column!r}; there are "
                    f"{', '.join(there)}{did_you_mean(column, there)}"
                )


def _problem(
    row: Row,
    number: int,
    prompt: str,
    answer: str,
    level: str | None,
    template: str,
    source: str,
) -> Problem:
    question = row[prompt]
    if not isinstance(question, str) or not question.strip():
        raise ValueError(
            f"{source}: the {prompt} of row {number} is {shown(question)}; a text that is not "
            "blank is needed"
        )
    text = template.replace("{prompt}", question)
    difficulty = 0 if level is None else _level(row[level], level, number, source)
    return Problem(_id(text), text, _answer(row[answer], answer, number, source), difficulty)


def _answer(value: Any, column: str, number: int, source: str) -> str:
    """The gold answer as a text; numbers are taken as they are written."""
    # A bool is no number here, and neither is NaN: both are refused below.
    if is_number(value):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{source}: the {column} of row {number} is {shown(value)}; a text that is not blank, "
            "or a number, is needed"
        )
    return value.strip()


def _level(value: Any, column: str, number: int, source: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise ValueError(
            f"{source}: the {column} of row {number} is {shown(value)}; a whole number of at "
            "least 0 is needed"
        )
    return int(text)


def _id(prompt: str) -> str:
    # By content and not by position, so that a history survives new rows and another order.
    return "own/" + hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def _distinct(made: Sequence[Problem], repeated: str, source: str) -> list[Problem]:
    """The problems without repeats; ValueError for repeats that are refused or contradict."""
    rows_of: dict[str, list[int]] = {}
    for number, problem in enumerate(made):
        rows_of.setdefault(problem.id, []).append(number)
    several = {id: rows for id, rows in rows_of.items() if len(rows) > 1}
    for rows in several.values():
        answers = sorted({made[row].answer for row in rows})
        if len(answers) > 1:
            raise ValueError(
                f"{source}: rows {_listed(rows)} ask the same and have different answers, "
                f"{_listed(map(repr, answers))}; keep one of them"
            )
    if several and repeated == "refuse":
        first = next(iter(several.values()))
        raise ValueError(
            f"{source}: {len(several)} problems occur more than once, the first in rows "
            f"{_listed(first)}; leave them out, or pass repeated='drop'"
        )
    return [made[rows[0]] for rows in rows_of.values()]


def _check_answers(made: Sequence[Problem], verifier: Any, source: str) -> None:
    """Raise ValueError unless the verifier can use every gold answer of the rows."""
    from workbench.verifiers import Math

    if verifier is None:
        with Math() as judge:
            _check_answers(made, judge, source)
        return
    unusable = _unusable(made, verifier)
    if unusable:
        first = unusable[0]
        raise ValueError(
            f"{source}: {type(verifier).__name__} cannot use {len(unusable)} of the {len(made)} "
            f"answers, the first is {shown(first.answer)} to {shown(first.prompt)}; change these "
            "answers, leave their rows out, or pass the verifier that the lab has"
        )


def check_answers(pool: Pool, verifier: Any) -> None:
    """Raise ValueError for a gold answer that `Math` or `Choice` cannot use, with its problem's id.

    Other verifiers are not asked: what they do with an answer may take long.
    """
    from workbench.verifiers import Choice, Math

    if not isinstance(verifier, Math | Choice):
        return
    # Public data sets have answers that can be read and that no response meets. They end no run.
    unusable = _unusable(pool.problems, verifier, to_be_met=not pool.config)
    if unusable:
        first = unusable[0]
        remedy = "leave their problems out"
        if pool.config.get("family") == "hub":
            remedy += ", as problems.hub(..., verifier=...) does"
        raise ValueError(
            f"problems: {type(verifier).__name__} cannot use {len(unusable)} of the {len(pool)} "
            f"answers, the first is {shown(first.answer)} of problem {first.id!r}; change these "
            f"answers, {remedy}, or pass the lab another verifier"
        )


def _unusable(problems: Sequence[Problem], verifier: Any, to_be_met: bool = True) -> list[Problem]:
    """The problems whose gold answer the verifier cannot use.

    With `to_be_met` neither `Math` nor `Choice` can use one that is wrong as a response.
    """
    if _are_usable(problems, verifier, to_be_met):
        return []
    if len(problems) == 1:
        return list(problems)
    # In halves: asking for each of thousands alone would be slow.
    half = len(problems) // 2
    return [
        *_unusable(problems[:half], verifier, to_be_met),
        *_unusable(problems[half:], verifier, to_be_met),
    ]


def _are_usable(problems: Sequence[Problem], verifier: Any, to_be_met: bool) -> bool:
    from workbench.verifiers import Choice, Math

    # The gold answer as a response would give it.
    responses = [f"\\boxed{{{problem.answer}}}" for problem in problems]
    try:
        scores = verifier.score(responses, [problem.answer for problem in problems])
    except ValueError:
        return False
    if to_be_met and isinstance(verifier, Math | Choice):
        return bool(scores.correct.all())
    return True


def _check_prompts(made: Sequence[Problem], tokenizer: Any, source: str) -> None:
    """Raise ValueError for a prompt with a character that the tokenizer does not know."""
    if isinstance(tokenizer, str | Path):
        from transformers import AutoTokenizer

        check_model(tokenizer, "tokenizer")
        with offline_hint(tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    for problem in made:
        lost = lost_characters(tokenizer, problem.prompt)
        if lost:
            raise ValueError(
                f"{source}: the tokenizer cannot express {lost[0]!r} in {shown(problem.prompt)}; "
                "change the prompt, or take a model that knows it"
            )


def _listed(items: Iterable[Any], most: int = 5) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
