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

import inspect
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

from workbench.datasets import readers
from workbench.datasets.arithmetic import checked_levels
from workbench.datasets.readers import Entry, check_place
from workbench.datasets.rows import csv_rows, not_right
from workbench.policies.checks import check_packages
from workbench.pools import Pool, Problem, digest_of
from workbench.utils.seeding import generator
from workbench.utils.validation import cause_of, check_size, one_of, whole_number

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

INSTRUCTIONS = {"Math": BOXED, "Choice": CHOICE, "Code": CODE}
TABLE = Path(__file__).with_suffix(".toml")
FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class DataSet:
    """Where a data set is and how it is read.

    Attributes
    ----------
    repository : str
        Of the hub.
    revision : str
        A commit.
    reader : str
        The function of `workbench.datasets.readers` that makes an `Entry` of a row. Its arguments
        are columns; those that have a default need not be there.
    columns : dict
        Argument of the reader -> column, where the column has another name.
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
    reader: str
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    config: str | None = None
    levels: bool = False
    gated: bool = False
    files: str | None = None
    verifier: str = "Math"


DATA_SETS = {name: DataSet(**entry) for name, entry in tomllib.loads(TABLE.read_text()).items()}


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
        Of the subset.
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
        For an unknown name, split or level, and for missing columns.
    ConnectionError
        When the data is not on this machine and the hub does not give it, with the reason and the
        command that fetches it.

    Notes
    -----
    Needs the package `datasets`.
    """
    key = str(name).lower().replace("_", "-")
    one_of("name", key, DATA_SETS)
    entry = DATA_SETS[key]
    one_of("split", split, entry.splits)
    if n is not None:
        whole_number("n", n, 1)
    if template is None:
        template = INSTRUCTIONS[entry.verifier]
    check_place(template)
    if levels is not None:
        # 0 is unknown, and the only level of a set without levels.
        levels = checked_levels(levels, tuple(range(6)) if entry.levels else (0,))
    check_packages("datasets")
    revision = revision or entry.revision
    if path is None:
        table = _from_hub(key, split, revision)
    else:
        place = Path(path)
        table = _directory(key, place, split) if place.is_dir() else _files([place])

    found, left_out = _distinct(key, table, path or entry.repository)
    # Before the verification, which is slow, and before the subset, so that n counts what fits.
    if levels is not None:
        found = {id: each for id, each in found.items() if each.level in levels}
    if verifier is not None:
        unmet = _not_right(key, found, verifier)
        found = {id: each for id, each in found.items() if id not in unmet}
        left_out["gold answer not verified"] = len(unmet)
    reasons = dict(+left_out)  # those that count some
    if reasons:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        warnings.warn(f"{key}: rows left out: {told}", stacklevel=2)
    if len(found) < (n or 1):
        raise ValueError(f"n={n}: {key} {split} has {len(found)} problems that fit")
    if n is not None:
        # The same problems are chosen when the rows of a revision come in another order.
        ids = sorted(found)
        order = generator(seed, "hub", key, split).permutation(len(ids))
        chosen = {ids[i] for i in order[:n]}
        found = {id: each for id, each in found.items() if id in chosen}
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


def command(name: str, revision: str | None = None) -> str:
    """The command that fetches a data set, to be run where there is a network."""
    entry = DATA_SETS[name]
    words = ["hf", "download", entry.repository, "--repo-type", "dataset"]
    words += ["--revision", revision or entry.revision]
    if entry.files:
        words += ["--include", entry.files.replace("{split}", "*")]
    return shlex.join(words)


# From rows to problems


def _distinct(key: str, table: Any, place: Any) -> tuple[dict[str, Entry], Counter]:
    """Different problems by id, in the order of the table, and how many rows were left out for
    which reason. ValueError when a column is missing; `place` names the table.
    """
    entry = DATA_SETS[key]
    read: Callable[..., Entry] = vars(readers)[entry.reader]
    # Nothing else is read, since reasoning and metadata may be most of the bytes.
    columns = {}
    for name, parameter in inspect.signature(read).parameters.items():
        column = entry.columns.get(name, name)
        if column in table.column_names and (name != "level" or entry.levels):
            columns[name] = column
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{key}: column {column!r} is missing; {place} has {', '.join(table.column_names)}"
            )
    table = table.select_columns(list(columns.values()))
    found: dict[str, Entry] = {}
    answers: dict[str, set[str]] = {}
    left_out: Counter = Counter()
    # In batches, since DAPO-Math-17k has 1.8 million rows.
    batches = (zip(*(batch[column] for column in columns.values())) for batch in table.iter(1000))
    for values in itertools.chain.from_iterable(batches):
        each = read(**dict(zip(columns, values)))
        if not each.question or not each.answer:
            left_out["without question or answer"] += 1
            continue
        # The question alone makes the id, so that rows which disagree on its answer come together.
        id = f"{key}/{digest_of(each.question)}"
        found.setdefault(id, each)
        answers.setdefault(id, set()).add(each.answer)
    if entry.verifier != "Code":
        # Two collections of tests need not contradict each other; two answers do.
        agreed = {id: each for id, each in found.items() if len(answers[id]) == 1}
        left_out["with several answers"] = len(found) - len(agreed)
        found = agreed
    return found, left_out


def _not_right(key: str, found: Mapping[str, Entry], verifier: Any) -> set[str]:
    """The ids of the entries whose right response does not score 1. Tests without a known solution
    pass.
    """
    responses = {id: each.response for id, each in found.items() if each.response is not None}
    if DATA_SETS[key].verifier != "Code":
        responses = {id: f"\\boxed{{{each.answer}}}" for id, each in found.items()} | responses
    ids = list(responses)
    unmet = not_right(list(responses.values()), [found[id].answer for id in ids], verifier)
    return {ids[place] for place in unmet}


# Where the data comes from


def _from_hub(key: str, split: str, revision: str) -> Any:
    """The split at exactly this revision, from the hub or from a copy in its cache.

    ConnectionError with the command that fetches it where there is neither.
    """
    from httpx import HTTPError
    from huggingface_hub import snapshot_download

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
    except (HTTPError, OSError) as error:
        gate = ""
        if entry.gated:
            gate = ", after accepting its terms on its page and `hf auth login` (it is gated)"
        raise ConnectionError(
            f"{key}: {repository} is not on this machine and the hub does not give it "
            f"({cause_of(error)}); run `{command(key, revision)}` where there is a network{gate}, "
            "bring the cache (HF_HOME) here and set HF_HUB_OFFLINE=1, or give path="
        ) from None


def _directory(key: str, folder: Path, split: str) -> Any:
    """The split from a directory: the files of `DataSet.files`, else what its card or the names of
    its files say.
    """
    import datasets

    entry = DATA_SETS[key]
    if entry.files:
        files = sorted(folder.glob(entry.files.format(split=entry.splits[split])))
        if files:
            return _files(files)
    # Without the card of the repository only the names of files tell configurations and splits, so
    # those that are wanted may be missing.
    configs = datasets.get_dataset_config_names(str(folder))
    config = entry.config if entry.config in configs else configs[0]
    there = datasets.get_dataset_split_names(str(folder), config)
    chosen = [name for name in (entry.splits[split], split) if name in there]
    if not chosen:
        raise ValueError(f"split={split!r}: {folder} has {', '.join(there)}")
    builder = datasets.load_dataset_builder(str(folder), config)
    return _files([Path(file) for file in builder.config.data_files[chosen[0]]])


def _files(paths: Sequence[Path]) -> Any:
    import datasets

    kind = FORMATS.get(paths[0].suffix)
    if kind is None:
        raise ValueError(
            f"path={str(paths[0])!r}: a directory or a file ending in {', '.join(FORMATS)} is "
            "needed"
        )
    for path in paths:
        check_size(path)
    if kind == "csv":
        # Answers stay as they stand there: 0.50, numbers of twenty digits, and None or NA.
        return datasets.Dataset.from_list([row for path in paths for row in csv_rows(path)])
    # Files that are given by name are all one split to `datasets`, which it calls train.
    return datasets.load_dataset(kind, data_files=list(map(str, paths)), split="train")
