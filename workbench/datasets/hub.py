r"""Public data sets by short name, at a pinned revision: `hub("gsm8k", "train")`.

A data set is an entry of `DATA_SETS`, which are listed in hub.toml beside this file: repository,
commit, splits, and how a row becomes a question and its answer. Ids are hashes of the content,
never positions. Rows that come twice are one problem. Rows without an answer, and questions of
mathematics with two different answers, are left out, counted and warned about.

Files come from the hub, from its cache on this machine or from `path`, and are read by the package
`datasets`. The commits were taken from public code that pins them, each in several independent
repositories; this project has not fetched them.

Answers of mathematics are for `verifiers.Math`, letters for `verifiers.Choice`. Answers of code are
tests for `verifiers.Code`, and their reference solutions never reach a prompt.
"""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from workbench.datasets import programs
from workbench.datasets.entries import (
    Entry,
    boxed_answer,
    check_place,
    level_of,
    text_of,
    without_dollars,
)
from workbench.policies.checks import check_packages
from workbench.pools import Pool, Problem, digest_of
from workbench.utils.seeding import generator
from workbench.utils.validation import cause_of, one_of, shown, whole_number

Row = Mapping[str, Any]

BOXED = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The instruction of the Qwen maths models (model card of Qwen2.5-Math-7B-Instruct), which CBS uses
too (appendix D).
"""

TAGS = (
    "{prompt}\nThink first, and check your own steps; then give the answer alone. "
    "Use exactly this form:\n"
    "<think>\nyour reasoning\n</think>\n<answer>\nyour answer\n</answer>"
)
"""The tags of PODS (its released code, utils/data.py), which `rewards.Tags` rewards; the wording is
ours.
"""

CHOICE = "{prompt}\nPlease reason step by step, and put the letter of your choice within \\boxed{}."
"""Multiple choice, worded like `BOXED`, for `verifiers.Choice`."""

CODE = (
    "{prompt}\nPlease reason step by step, and end with the whole program in Python, in one block "
    "between lines of ```."
)
"""Programs, worded like `BOXED`, for `verifiers.Code`."""

LETTERS = "ABCD"
GPQA = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
)
TABLE = Path(__file__).with_suffix(".toml")
FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class Reader:
    """How rows of a form become questions and answers.

    Attributes
    ----------
    columns : tuple of str
        Those that `read` needs.
    read : function
        Of a row; returns an `Entry`, whose question or answer is empty where the row has none.
    optional : tuple of str
        Columns that `read` uses if they are there.
    """

    columns: tuple[str, ...]
    read: Callable[[Row], Entry]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """Where a data set is and how it is read.

    Attributes
    ----------
    repository : str
        Of the hub.
    revision : str
        A commit.
    reader : Reader
    splits : dict
        Our name of a split -> the repository's.
    config : str, optional
        Of the repository.
    levels : bool
        Whether problems have one.
    gated : bool
        Whether the hub asks who downloads it.
    files : str, optional
        Pattern of the files to download, where the repository has much else; "{split}" stands for
        the split.
    verifier : {"Math", "Choice", "Code"}
        What judges the answers. It decides about the instruction around a question, see
        `INSTRUCTIONS`.
    """

    repository: str
    revision: str
    reader: Reader
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    config: str | None = None
    levels: bool = False
    gated: bool = False
    files: str | None = None
    verifier: str = "Math"


# How rows are read


def _columns(question: str, *others: str) -> Reader:
    """Reads rows whose answer, and perhaps a level, stands in a column of its own."""

    def read(row: Row) -> Entry:
        answer, *levels = (row[name] for name in others)
        level = level_of(levels[0]) if levels else 0
        return Entry(text_of(row[question]), without_dollars(answer), level)

    return Reader((question, *others), read)


def _gsm8k(row: Row) -> Entry:
    # The answer stands behind the last #### of a worked solution, with commas between thousands.
    _, mark, answer = text_of(row["answer"]).rpartition("####")
    return Entry(text_of(row["question"]), without_dollars(answer.replace(",", "")) if mark else "")


def _solved(row: Row) -> Entry:
    """MATH and AIME24: the answer is the last box of the solution."""
    answer = boxed_answer(text_of(row["solution"]))
    return Entry(text_of(row["problem"]), without_dollars(answer), level_of(row.get("level", 0)))


def _olympiad(row: Row) -> Entry:
    """Several entries of `final_answer` are one answer; a context stands before the question."""
    question = "\n".join(filter(None, [text_of(row.get("context")), text_of(row["question"])]))
    answer = row["final_answer"]
    if not isinstance(answer, str):
        answer = ", ".join(answer or ())
    return Entry(question, without_dollars(answer))


def _dapo(row: Row) -> Entry:
    """The question without the prompt around it: one paragraph before it, and one behind it that
    asks for the answer as "Answer:".
    """
    prompt = row["prompt"]
    text = text_of(prompt[-1]["content"] if isinstance(prompt, list) and prompt else prompt)
    text = re.sub(r"\ASolve the following math problem step by step\.[^\n]*\n\n", "", text)
    text = re.sub(r"\n\nRemember to put your answer on its own line[^\n]*\Z", "", text)
    reward = row["reward_model"] or {}
    return Entry(text, without_dollars(reward.get("ground_truth")))


def _gpqa(row: Row) -> Entry:
    """Four choices in an order drawn from the content alone, so that it is the same in every run;
    the answer is a letter.
    """
    question, *choices = [text_of(row[name]) for name in GPQA]
    if not all((question, *choices)):
        return Entry(question, "")
    # Choice 0 is the correct one, see `GPQA`.
    order = generator("gpqa", question, *choices).permutation(len(choices))
    lines = [f"({letter}) {choices[i]}" for letter, i in zip(LETTERS, order)]
    return Entry("\n".join([question, *lines]), LETTERS[list(order).index(0)])


READERS = {
    "gsm8k": Reader(("question", "answer"), _gsm8k),
    "solved": Reader(("problem", "solution"), _solved, ("level",)),
    "problem": _columns("problem", "answer"),
    "problem_and_level": _columns("problem", "answer", "level"),
    "question": _columns("question", "answer"),
    "dapo": Reader(("prompt", "reward_model"), _dapo),
    "olympiad": Reader(("question", "final_answer"), _olympiad, ("context",)),
    "gpqa": Reader(GPQA, _gpqa),
    "mbpp": Reader(("text", "test_list"), programs.mbpp, ("test_setup_code", "code")),
    "mbpp_plus": Reader(
        ("prompt", "test_list", "test"), programs.mbpp_plus, ("test_imports", "code")
    ),
    "human_eval": Reader(
        ("prompt", "test", "entry_point"), programs.human_eval, ("canonical_solution",)
    ),
    "apps": Reader(
        ("question", "input_output"), programs.apps, ("starter_code", "solutions", "difficulty")
    ),
    "code_contests": Reader(
        ("description", "public_tests", "private_tests"),
        programs.code_contests,
        ("generated_tests", "solutions"),
    ),
}
INSTRUCTIONS = {"Math": BOXED, "Choice": CHOICE, "Code": CODE}
DATA_SETS = {
    name: DataSet(**{**entry, "reader": READERS[entry["reader"]]})
    for name, entry in tomllib.loads(TABLE.read_text(encoding="utf-8")).items()
}


def hub(
    name: str,
    split: str = "train",
    n: int | None = None,
    *,
    seed: int = 0,
    template: str | None = None,
    levels: Sequence[int] | None = None,
    path: Any = None,
    revision: str | None = None,
    verifier: Any = None,
) -> Pool:
    """A `Pool` of a public data set, such as "gsm8k", "math", "math-500", "aime24" or "gpqa".

    Parameters
    ----------
    name : str
        In any case; `workbench.datasets.hub.DATA_SETS` lists them.
    split : str
        "train" or "test", as the set has it.
    n : int, optional
        Size of a subset drawn by `seed`; None for all problems.
    seed : int
    template : str, optional
        Text with {prompt} where the question goes, such as `BOXED`, the default, `TAGS` or, the
        default of "gpqa", `CHOICE` of `workbench.datasets.hub`; "{prompt}" for the bare question.
    levels : numbers, optional
        Keep these levels (MATH has 1 to 5; 0 is unknown).
    path : path, optional
        A local file (JSONL, JSON, parquet, CSV) or directory with the same columns, in place of the
        hub.
    revision : str, optional
        Another commit, tag or branch than the pinned commit.
    verifier : Verifier, optional
        Leave out problems whose gold answer, in a box, it does not score 1. A few answers of the
        larger sets cannot be read as mathematics and would end a run when they are drawn.

    Raises
    ------
    ValueError
        For an unknown name, split, revision or level, and for missing columns.
    ConnectionError
        When the data is not on this machine, with the command that fetches it.
    PermissionError
        For a data set that asks for consent first.

    Notes
    -----
    Needs the package `datasets`.
    """
    key = str(name).lower().replace("_", "-")
    _check(key, name, split, n, template, levels, revision)
    check_packages("datasets")
    entry = DATA_SETS[key]
    revision = revision or entry.revision
    template = template or INSTRUCTIONS[entry.verifier]
    table = _from_hub(key, split, revision) if path is None else _local(key, Path(path), split)

    used = _used_columns(key, table.column_names, path or entry.repository)
    found, left_out = _distinct(key, table.select_columns(used))
    # Before the verification, which is slow, and before the subset, so that n counts what fits.
    if levels is not None:
        found = {id: each for id, each in found.items() if each.level in levels}
    if verifier is not None:
        size = len(found)
        found = {id: each for id, each in found.items() if _holds(key, each, verifier)}
        left_out["gold answer not verified"] = size - len(found)
    reasons = {reason: count for reason, count in left_out.items() if count}
    if reasons:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        warnings.warn(f"{key}: rows left out: {told}", stacklevel=2)

    found = _subset(key, split, found, n, seed)
    config = {
        "family": "hub",
        "name": key,
        "split": split,
        "n": n,
        "seed": seed,
        "template": template,
        "levels": None if levels is None else list(levels),
        "left_out": reasons,
    }
    if path is not None:
        config["path"] = str(path)
    else:
        config |= {"repository": entry.repository, "revision": revision}
    problems = [
        Problem(id, template.replace("{prompt}", each.question), each.answer, each.level)
        for id, each in found.items()
    ]
    return Pool(problems, config, None if verifier is None else type(verifier).__name__)


def _used_columns(key: str, there: Sequence[str], place: Any) -> list[str]:
    """The columns that are read; ValueError when one is missing.

    Nothing else is read, since reasoning and metadata may be most of the bytes.
    """
    reader = DATA_SETS[key].reader
    missing = [column for column in reader.columns if column not in there]
    if missing:
        raise ValueError(f"{key}: column {missing[0]!r} is missing; {place} has {', '.join(there)}")
    return [column for column in reader.columns + reader.optional if column in there]


def command(name: str, revision: str | None = None) -> str:
    """The command that fetches a data set, to be run where there is a network."""
    entry = DATA_SETS[name]
    files = ""
    if entry.files:
        files = f" --include {shlex.quote(entry.files.replace('{split}', '*'))}"
    revision = revision or entry.revision
    return f"hf download {entry.repository} --repo-type dataset --revision {revision}{files}"


def _check(
    key: str, name: Any, split: Any, n: Any, template: Any, levels: Any, revision: Any
) -> None:
    one_of("name", key if isinstance(name, str) else name, DATA_SETS)
    one_of("split", split, DATA_SETS[key].splits)
    if n is not None:
        whole_number("n", n, 1)
    if template is not None:
        check_place(template)
    if levels is not None and not DATA_SETS[key].levels:
        others = ", ".join(each for each, entry in DATA_SETS.items() if entry.levels)
        raise ValueError(
            f"levels={shown(levels)}: problems of {key} have no levels; those of {others} have"
        )
    is_several = isinstance(levels, list | tuple | set | range)
    if levels is not None and not (is_several and all(each in range(6) for each in levels)):
        raise ValueError(
            f"levels={shown(levels)}: several of 1 to 5, and 0 for unknown, are needed: (3, 4, 5)"
        )
    if revision is not None and not re.fullmatch(r"[\w./-]+", str(revision)):
        raise ValueError(f"revision={shown(revision)}: a commit, tag or branch is needed")


# From rows to problems


def _distinct(key: str, table: Any) -> tuple[dict[str, Entry], Counter]:
    """Different problems by id, in the order of the table, and how many rows were left out for
    which reason.
    """
    read = DATA_SETS[key].reader.read
    found: dict[str, Entry] = {}
    answers: dict[str, set[str]] = {}
    left_out: Counter = Counter()
    # In batches, since DAPO-Math-17k has 1.8 million rows.
    batches = (zip(*batch.values()) for batch in table.iter(1000))
    for values in itertools.chain.from_iterable(batches):
        entry = read(dict(zip(table.column_names, values)))
        if not entry.question or not entry.answer:
            left_out["without question or answer"] += 1
            continue
        # The question alone makes the id, so that rows which disagree on its answer come together.
        id = f"{key}/{digest_of(entry.question)}"
        found.setdefault(id, entry)
        answers.setdefault(id, set()).add(entry.answer)
    if DATA_SETS[key].verifier != "Code":
        # Two collections of tests need not contradict each other; two answers do.
        agreed = {id: entry for id, entry in found.items() if len(answers[id]) == 1}
        left_out["with several answers"] = len(found) - len(agreed)
        found = agreed
    return found, left_out


def _holds(key: str, entry: Entry, verifier: Any) -> bool:
    """Whether the right response of an entry scores 1. Tests without a known solution pass."""
    response = entry.response
    if response is None:
        if DATA_SETS[key].verifier == "Code":
            return True
        response = f"\\boxed{{{entry.answer}}}"
    # Asked for one at a time, since a gold answer that cannot be read raises.
    try:
        return bool(verifier.score([response], [entry.answer]).reward[0] == 1.0)
    except ValueError:
        return False


def _subset(
    key: str, split: str, found: dict[str, Entry], n: int | None, seed: int
) -> dict[str, Entry]:
    """n of them, in their order. Which ones depends on the seed and the ids, not on the order."""
    if (n is not None and n > len(found)) or not found:
        raise ValueError(f"n={n}: {key} {split} has {len(found)} problems that fit")
    if n is None:
        return found
    # The same problems are chosen when the rows of a revision come in another order.
    ids = sorted(found)
    order = generator(seed, "hub", key, split).permutation(len(ids))
    chosen = {ids[i] for i in order[:n]}
    return {id: entry for id, entry in found.items() if id in chosen}


# Where the data comes from


def _from_hub(key: str, split: str, revision: str) -> Any:
    """The split at exactly this revision, from the hub or from a copy in its cache.

    ConnectionError with the command that fetches it where there is neither.
    """
    from httpx import HTTPError
    from huggingface_hub import errors, snapshot_download

    entry = DATA_SETS[key]
    repository = entry.repository
    files = entry.files and entry.files.format(split=entry.splits[split])
    snapshot = partial(
        snapshot_download, repository, repo_type="dataset", revision=revision, allow_patterns=files
    )
    # A commit never changes, so a copy of it is as good as the hub.
    if re.fullmatch("[0-9a-f]{40}", revision):
        with suppress(FileNotFoundError, ValueError):
            return _directory(key, Path(snapshot(local_files_only=True)), split)
    try:
        return _directory(key, Path(snapshot()), split)
    except errors.GatedRepoError:
        raise PermissionError(
            f"{key}: {repository} is gated: accept its terms at "
            f"https://huggingface.co/datasets/{repository}, then `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise ValueError(
            f"revision={revision!r}: {repository} has no such revision; the pinned one is "
            f"{entry.revision}"
        ) from None
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"{key}: {repository}: {cause_of(error)}") from None
    except (HTTPError, OSError):
        gate = ""
        if entry.gated:
            gate = ", after accepting its terms on its page and `hf auth login` (it is gated)"
        raise ConnectionError(
            f"{key}: {repository} is not on this machine and the hub cannot be reached; run "
            f"`{command(key, revision)}` where there is a network{gate}, bring the cache (HF_HOME) "
            "here and set HF_HUB_OFFLINE=1, or give path="
        ) from None


def _local(key: str, path: Path, split: str) -> Any:
    """The split from a file, or from a directory such as a copy of the repository."""
    if path.is_dir():
        return _directory(key, path, split)
    if path.suffix not in FORMATS:
        raise ValueError(
            f"path={str(path)!r}: a directory or a file ending in {', '.join(FORMATS)} is needed"
        )
    if not path.is_file():
        copy = f"{command(key)} --local-dir {path.stem}"
        raise FileNotFoundError(
            f"path={str(path)!r}: there is no such file; `{copy}` makes a copy to give as path"
        )
    import datasets

    return datasets.load_dataset(FORMATS[path.suffix], data_files=str(path), split="train")


def _directory(key: str, folder: Path, split: str) -> Any:
    """The split from a directory: the files of `DataSet.files`, else what its card or the names of
    its files say.
    """
    import datasets

    entry = DATA_SETS[key]
    if entry.files:
        pattern = entry.files.format(split=entry.splits[split])
        files = sorted(map(str, folder.glob(pattern)))
        if files:
            kind = FORMATS[Path(files[0]).suffix]
            # Files that are given by name are all one split to `datasets`, which it calls train.
            return datasets.load_dataset(kind, data_files=files, split="train")
    # Without the card of the repository only the names of files tell configurations and splits, so
    # those that are wanted may be missing.
    configs = datasets.get_dataset_config_names(str(folder))
    config = entry.config if entry.config in configs else configs[0]
    there = datasets.get_dataset_split_names(str(folder), config)
    chosen = [name for name in (entry.splits[split], split) if name in there]
    if not chosen:
        raise ValueError(f"split={split!r}: {folder} has {', '.join(there)}")
    return datasets.load_dataset(str(folder), config, split=chosen[0])
