"""Problems of your own: from rows in memory, or from a JSONL, JSON, CSV or parquet file.

All rows are checked before any model is loaded: a training run that meets an unusable row after an
hour would end there.
"""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from workbench.datasets.readers import check_place
from workbench.pools import Pool, Problem, digest_of
from workbench.utils.validation import (
    LARGEST_FILE,
    brief,
    check_size,
    did_you_mean,
    is_number,
    one_of,
)
from workbench.verifiers import Choice, Code, Math
from workbench.verifiers.base import check_verifier, checked_scores
from workbench.verifiers.code import read_tests

Row = Mapping[str, Any]

REPEATED = ("refuse", "drop")
LONGEST_LEVEL = 18  # digits, as 64 bits have room for

# Answers that look like mathematics and are letters or words. Math-Verify reads them as products.
LETTER = re.compile(r"\(?[A-Z]\)?(?:[.):]\s.*)?", re.DOTALL)
# A backslash of LaTeX that JSON or Python has made a control character of.
EATEN = re.compile(
    r"[\x07\x08\x0b\x0c](?=[a-z])|\t(?=ext|imes|heta|frac|an\b|o\b)|\r(?=ight|ho|m\b)"
    r"|\n(?=eq?\b|u\b|ot|abla)"
)
WORDS = re.compile(r"(?i)(?=.*[a-z]{4}|.*\b(?:yes|no)\b)[a-z]+(?:[\s'-]+[a-z]+)*")
# What is said of an answer that may be fine, but whose check has not ended.
LATE = (
    "its check took longer than the verifier's deadline, as it may on a busy machine; try again, "
    "or with a longer one, such as verifier=verifiers.Math(deadline=60)"
)


def from_rows(
    rows: Iterable[Row],
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    level: str | None = None,
    template: str = "{prompt}",
    repeated: str = "refuse",
    verifier: Any = None,
) -> Pool:
    r"""A `Pool` of your own problems, all of them checked.

    Parameters
    ----------
    rows : iterable of dicts, or DataFrame
        One row for each problem.
    prompt, answer : str
        Names of the columns with the question and with the gold answer, a text or a number.
    level : str, optional
        Name of a column with the difficulty, a whole number.
    template : str
        A text with {prompt} where the question goes.
    repeated : {"refuse", "drop"}
        What happens to a problem that occurs more than once with the same answer. Different answers
        to one question are always refused.
    verifier : optional
        The verifier of the lab: every answer must be one that it can use. Default: `Math()`, as in
        the labs.

    Raises
    ------
    ValueError
        For missing columns, blank prompts, answers that the verifier cannot use, and repeated
        problems. The message names the first such row.

    Examples
    --------
    >>> pool = from_rows([{"prompt": "1+1=", "answer": 2}, {"prompt": "2+2=", "answer": 4}])
    >>> pool[1].answer
    '4'
    """
    one_of("repeated", repeated, REPEATED)
    check_place(template)
    verifier = Math() if verifier is None else verifier
    check_verifier(verifier)
    columns = {"prompt": prompt, "answer": answer, "level": level}
    # From cheap checks to dear ones. Repeats go before the verifier reads every answer.
    all_rows = [
        _problem(row, columns, template, f"row {number}")
        for number, row in enumerate(_listed_rows(rows))
    ]
    if not all_rows:
        raise ValueError("rows=[]: at least one row is needed")
    made = _distinct(all_rows, repeated)
    _check_usable(made, verifier, lambda each: f"row {all_rows.index(each)}")
    # Without a configuration: a manifest cannot make the caller's rows again.
    return Pool(made, checked_for=type(verifier).__name__)


def from_file(
    path: Any,
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    level: str | None = None,
    template: str = "{prompt}",
    repeated: str = "refuse",
    verifier: Any = None,
) -> Pool:
    """A `Pool` of the problems in a file, all of them checked.

    Parameters
    ----------
    path : path
        A file that ends in .jsonl (an object on each line), .json (a list of objects), .csv (with a
        line of names) or .parquet. Where a float cannot hold a number in JSON, the answer is the
        text that stands there.
    prompt, answer, level, template, repeated, verifier
        As in `from_rows`.

    Raises
    ------
    ValueError
        As `from_rows`, and for a file of another kind.
    FileNotFoundError
        When there is no such file.
    """
    file = Path(path)
    if file.suffix not in KINDS:
        raise ValueError(f"path={str(path)!r}: a file ending in {', '.join(KINDS)} is needed")
    check_size(file)
    options: dict[str, Any] = {
        "prompt": prompt,
        "answer": answer,
        "level": level,
        "template": template,
        "repeated": repeated,
    }
    try:
        pool = from_rows(KINDS[file.suffix](file), verifier=verifier, **options)
    except (ValueError, csv.Error, RecursionError) as error:
        raise ValueError(f"path={str(path)!r}: {error}") from None
    # A verifier of your own is nothing that a manifest can make again.
    if verifier is None:
        pool.config = {"family": "from_file", "path": str(path), **options}
    return pool


def check_answers(pool: Pool, verifier: Any) -> None:
    """Raise ValueError for a gold answer that a verifier of the package cannot use. Other verifiers
    are not asked: what they do with an answer may take long.
    """
    if isinstance(verifier, Math | Choice | Code):
        # Public data sets have answers that can be read and that no response meets. They end no
        # run.
        _check_usable(pool.problems, verifier, lambda _: "problems", own=not pool.config)


def warn_of_overlap(problems: Any, held_out: Sequence[Problem]) -> None:
    """Warn where problems that are held out are among those of a pool that is trained on."""
    prompts = {each.prompt for each in problems} if isinstance(problems, Pool) else set()
    both = [each.prompt for each in held_out if each.prompt in prompts]
    if both:
        warnings.warn(
            f"held_out: {len(both)} of its {len(held_out)} problems are trained on as well, the "
            f"first is {brief(both[0])}; leave them out, or let Pool.split make both pools",
            stacklevel=4,
        )


# The rows of a file, each a dict from column to value


def _decimal(text: str) -> float | str:
    """A number of JSON, and its text where a float would lose digits of it."""
    number = float(text)
    return number if Decimal(text) == Decimal(repr(number)) else text


def _of_json_lines(path: Path) -> list[Any]:
    rows = []
    with path.open(encoding=ENCODING, newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line, parse_float=_decimal))
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON ({error})") from None
    return rows


def _of_json(path: Path) -> list[Any]:
    why = "a list of objects is needed; JSON lines belong in a .jsonl file"
    text = path.read_text(ENCODING)
    try:
        rows = json.loads(text, parse_float=_decimal)
    except ValueError as error:
        raise ValueError(f"{why} ({error})") from None
    if not isinstance(rows, list):
        raise ValueError(why)
    return rows


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file. Everything stays text: "007" and "1e3" are answers as they stand."""
    # The tests of a program in one field are longer than Python allows by itself.
    usual = csv.field_size_limit(LARGEST_FILE)
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            # Strict, or a quotation mark that is never closed would swallow all rows behind it.
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or []  # read from the file when asked for
            rows = list(reader)
    finally:
        csv.field_size_limit(usual)
    _check_columns(names)
    for number, row in enumerate(rows):
        if None in row:
            raise ValueError(
                f"row {number} has more fields than there are columns; a field with a comma in it "
                "belongs in quotation marks"
            )
    return rows


def _of_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return _of_table(pyarrow.parquet.read_table(path))


def _of_table(table: Any) -> list[dict[str, Any]]:
    """The rows of a table of Arrow."""
    import pyarrow as pa

    for place, column in enumerate(table.columns):
        if column.type in (pa.float16(), pa.float32()):
            # As they are written: 0.1 of 32 bits is 0.10000000149 in 64. Whole numbers are exact.
            kind = column.type.to_pandas_dtype()
            exact = [
                each if each is None else float(each if each % 1 == 0 else str(kind(each)))
                for each in column.to_pylist()
            ]
            table = table.set_column(
                place, table.column_names[place], pa.array(exact, pa.float64())
            )
    return table.to_pylist()


ENCODING = "utf-8-sig"  # with or without a byte order mark
KINDS = {".jsonl": _of_json_lines, ".json": _of_json, ".csv": csv_rows, ".parquet": _of_parquet}


def _check_columns(names: Sequence[str]) -> None:
    """ValueError for columns of one name, of which a row could have the last one alone."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"there are several columns {twice[0]!r}; keep one of them")


def _listed_rows(rows: Any) -> list[Any]:
    import pandas as pd

    # The iteration of a data frame gives the names of its columns.
    if isinstance(rows, pd.DataFrame):
        _check_columns(list(rows.columns))
        short = rows.select_dtypes(["float16", "float32"])
        # As they are written: 0.1 of 32 bits is 0.10000000149 in 64.
        written = rows.astype(dict.fromkeys(short, str))
        return written.astype(dict.fromkeys(short, float)).to_dict("records")
    # A data set of the package datasets, whatever format it is set to.
    if hasattr(rows, "with_format") and isinstance(getattr(rows, "num_rows", None), int):
        return _of_table(rows.with_format("arrow")[:])
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise ValueError(
            f"rows={brief(rows)}: a list of dicts is needed, such as "
            "[{'prompt': '1+1=', 'answer': '2'}]"
        )
    return list(rows)


# From a row to a problem


def _problem(row: Any, columns: Mapping[str, str | None], template: str, where: str) -> Problem:
    """The problem of a row; `where` names the row in messages."""
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} is {brief(row)}; a dict is needed")
    for argument, column in columns.items():
        if column is not None and column not in row:
            there = ", ".join(map(repr, row))
            raise ValueError(
                f"{where} has no column {column!r} for the {argument}; there are {there}; name "
                f"another one{did_you_mean(column, row)}"
            )

    def refused(column: str, needed: str) -> ValueError:
        name = columns[column]
        return ValueError(f"{where}: the {name} is {brief(row[name])}; {needed} is needed")

    question = row[columns["prompt"]]
    if not isinstance(question, str) or not question.strip():
        raise refused("prompt", "a text that is not blank")
    gold = row[columns["answer"]]
    # Numbers are taken as they are written. A bool is no number here, and neither is NaN.
    if is_number(gold) or type(gold) in (int, Decimal):
        try:
            gold = str(gold)
        except ValueError as error:  # a number of thousands of digits
            raise ValueError(
                f"{where}: the {columns['answer']} is no number to read ({error})"
            ) from None
    if not isinstance(gold, str) or not gold.strip():
        raise refused("answer", "a text that is not blank, or a number,")
    if EATEN.search(gold):
        raise refused("answer", "a text whose backslashes are whole (two in JSON, r'' in Python)")
    level = "0"
    if columns["level"] is not None:
        level = row[columns["level"]]
        # One missing value makes floats of all in a column of a data frame.
        level = str(int(level) if isinstance(level, float) and level.is_integer() else level)
        if not level.isdecimal() or len(level) > LONGEST_LEVEL:
            raise refused("level", f"a whole number from 0, of {LONGEST_LEVEL} digits at most,")
    text = template.replace("{prompt}", question)
    for column, content in (("prompt", text), ("answer", gold)):
        try:
            content.encode()
        except UnicodeEncodeError:
            raise refused(column, "a text without lone surrogates") from None
    # An id by content and not by position, so that a history survives new rows and another order.
    return Problem(f"own/{digest_of(text)}", text, gold.strip(), int(level))


def _distinct(made: Sequence[Problem], repeated: str) -> list[Problem]:
    """The problems without repeats; ValueError for repeats that are refused or that contradict each
    other.
    """
    rows_of: dict[str, list[int]] = {}
    for number, problem in enumerate(made):
        rows_of.setdefault(problem.id, []).append(number)
    several = [rows for rows in rows_of.values() if len(rows) > 1]
    for rows in several:
        answers = sorted({made[row].answer for row in rows})
        if len(answers) > 1:
            raise ValueError(
                f"rows {_listed(rows)} ask the same and have different answers, "
                f"{_listed(map(repr, answers))}; keep one of them"
            )
    if several and repeated == "refuse":
        raise ValueError(
            f"{len(several)} problems occur more than once, the first in rows "
            f"{_listed(several[0])}; leave them out, or pass repeated='drop'"
        )
    return [made[rows[0]] for rows in rows_of.values()]


def _listed(items: Iterable[Any], most: int = 5) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


# What a verifier can use


def _check_usable(
    problems: Sequence[Problem], verifier: Any, where: Callable[[Problem], str], own: bool = True
) -> None:
    """Raise ValueError unless the verifier can use the gold answer of every problem.

    Answers of one's `own` must also be right for `Math` and `Choice` when a response gives them,
    and words are no mathematics. `where` names the place of a problem in the message.
    """
    forms = [_form(problem.answer) for problem in problems]
    name = type(verifier).__name__
    refused: set[str] = set()
    if isinstance(verifier, Math):
        # A letter may be mathematics, but not where most answers are one.
        is_mostly_letters = 2 * forms.count("Choice") >= len(forms)
        refused = {"Code", *(["words"] if own else []), *(["Choice"] if is_mostly_letters else [])}
    elif isinstance(verifier, Code):
        refused = {"Choice", "Math", "words"}
    unusable = {problem: "" for problem, form in zip(problems, forms) if form in refused}
    if not unusable and not isinstance(verifier, Code):
        responses = [f"\\boxed{{{problem.answer}}}" for problem in problems]
        to_be_met = own and isinstance(verifier, Math | Choice)
        unmet = not_right(responses, [problem.answer for problem in problems], verifier)
        unusable = {
            problems[i]: said for i, said in unmet.items() if to_be_met or said not in ("", LATE)
        }
    if unusable:
        # The verifier that most answers fit.
        ((form, _),) = Counter(forms).most_common(1)
        other = f"verifier=verifiers.{form}(), which fits them"
        if form == name == "Choice":
            other = "verifier=verifiers.Choice(letters=...) with the letters of all options"
        elif form in ("words", name):
            other = "another verifier, which may be your own (docs/guides/own-verifier.md)"
        first, said = next(iter(unusable.items()))
        raise ValueError(
            f"{where(first)}: {name} cannot use {len(unusable)} of the {len(problems)} answers, "
            f"the first is {brief(first.answer)} to {brief(first.prompt)}, of problem "
            f"{first.id!r}{said and f' ({said})'}; change these answers, leave their problems out, "
            f"or pass {other}"
        )


def _form(answer: str) -> str:
    """The verifier whose answers look like this one, or "words"."""
    if LETTER.fullmatch(answer):
        return "Choice"
    if WORDS.fullmatch(answer):
        return "words"
    try:
        read_tests(answer, "answer")
    except ValueError:
        return "Math"
    return "Code"


def not_right(responses: Sequence[str], answers: Sequence[str], verifier: Any) -> dict[int, str]:
    """Which answers are not worth 1 although the response gives them: {place: what the verifier
    says of an answer that it cannot use, else nothing}.
    """
    try:
        scores = checked_scores(verifier, responses, answers)
    except ValueError as error:
        if len(answers) == 1:
            return {0: str(error)}
        # Asked for one at a time, since the first answer that cannot be used raises.
        alone = [not_right([r], [a], verifier) for r, a in zip(responses, answers)]
        return {place: found[0] for place, found in enumerate(alone) if found}
    return {
        place: LATE if scores.status[place] == "timeout" else ""
        for place in np.flatnonzero(scores.reward != 1).tolist()
    }
