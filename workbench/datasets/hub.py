"""Public data sets by short name, at a pinned revision: `rows("gsm8k", "train")`. `workbench.problems.hub` makes a pool of them.

A data set is a line of `DATA_SETS`: repository, commit, splits, and how a row becomes question, answer and level. Ids are
hashes of the content, never positions. Rows that come twice are one problem; rows without an answer, and questions with
two different answers, are left out, counted and warned about. Data is read by the package `datasets`: from the hub, from
a copy of the pinned revision in the local cache, or from `path`. The commits were taken from public code that pins them
(each in several independent repositories); they have not been fetched by this project.
"""

import hashlib
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workbench.utils.seeding import generator

BOXED = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The instruction of the Qwen maths models (model card of Qwen2.5-Math-7B-Instruct); CBS appendix D uses it."""

TAGS = (
    "{prompt}\nThink first, and check your own steps; then give the answer alone. Use exactly this form:\n"
    "<think>\nyour reasoning\n</think>\n<answer>\nyour answer\n</answer>"
)
"""The tags of PODS (its released code, utils/data.py), which `rewards.Tags` rewards; the wording is ours."""

CHOICE = "{prompt}\nPlease reason step by step, and put the letter of your choice within \\boxed{}."
"""Multiple choice, worded like `BOXED`, for `verifiers.Choice`."""

LETTERS = "ABCD"
GPQA = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
)
FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class DataSet:
    """Where a data set is and how it is read.

    repository, revision, config: of the hub; revision is a commit. splits: our name -> the repository's. columns: those
    `read` needs, optional: those it uses if there; read: row -> (question, answer, level), where question or answer may
    be None. template: around the question unless told otherwise. levels: whether problems have one. gated: whether the
    hub asks who downloads it. files: pattern of the files to download, where the repository has much else.
    """

    repository: str
    revision: str
    columns: tuple
    read: Callable
    splits: dict = field(default_factory=lambda: {"test": "test"})
    config: str | None = None
    template: str = BOXED
    levels: bool = False
    gated: bool = False
    optional: tuple = ()
    files: str | None = None


def last_box(text):
    r"""What the last `\boxed{...}` (or `\fbox{...}`, or `\boxed 7`) of a solution holds, nested braces included; else None.

    >>> last_box(r"\boxed{1}, hence \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?:\s*\{|\s+([^$\n]+))", text))
    if not boxes:
        return None
    if boxes[-1][1]:
        return boxes[-1][1].strip(" .")
    rest, depth = text[boxes[-1].end() :], 1
    for brace in re.finditer(r"\\.|[{}]", rest):  # an escaped brace is no brace
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return rest[: brace.start()]
    return None


def _columns(question, answer, level=None):
    """Reads rows whose answer stands in a column of its own."""
    return lambda row: (row[question], row[answer], 0 if level is None else _level(row[level]))


def _gsm8k(row):
    _, mark, answer = _text(row["answer"]).rpartition("####")
    return row["question"], answer.replace(",", "") if mark else None, 0


def _solved(row):
    """MATH and AIME24: the answer is the last box of the solution."""
    return row["problem"], last_box(_text(row["solution"])), _level(row.get("level", 0))


def _olympiad(row):
    """Several entries of `final_answer` are one answer; a context stands before the question."""
    question = "\n".join(filter(None, [_text(row.get("context")), _text(row["question"])]))
    answer = row["final_answer"]
    return question, answer if isinstance(answer, str) else ", ".join(answer or ()), 0


def _dapo(row):
    """The question without the prompt around it: one paragraph before, one behind, and an answer asked for as "Answer:"."""
    prompt, reward = row["prompt"], row["reward_model"] or {}
    text = _text(prompt[-1]["content"] if isinstance(prompt, list) and prompt else prompt)
    text = re.sub(r"\ASolve the following math problem step by step\.[^\n]*\n\n", "", text)
    return (
        re.sub(r"\n\nRemember to put your answer on its own line[^\n]*\Z", "", text),
        reward.get("ground_truth"),
        0,
    )


def _gpqa(row):
    """Four choices in an order drawn from the content alone, so the same in every run; the answer is a letter."""
    question, *choices = [_text(row[name]) for name in GPQA]
    if not all((question, *choices)):
        return question, None, 0
    order = generator("gpqa", question, *choices).permutation(len(choices))
    lines = [f"({letter}) {choices[i]}" for letter, i in zip(LETTERS, order)]
    return "\n".join([question, *lines]), LETTERS[list(order).index(0)], 0


def _level(value):
    """ "Level 5" and 5 are 5; "Level ?" (a few rows of MATH) is 0."""
    digits = re.search(r"\d+", str(value))
    return int(digits.group()) if digits else 0


TRAIN_AND_TEST = {"train": "train", "test": "test"}
TRAIN = {"train": "train"}
DATA_SETS = {
    # 7,473 + 1,319 rows
    "gsm8k": DataSet(
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        ("question", "answer"),
        _gsm8k,
        TRAIN_AND_TEST,
        "main",
    ),
    # 7,500 + 5,000 rows
    "math": DataSet(
        "DigitalLearningGmbH/MATH-lighteval",
        "0530c78699ea5e8eb5530600900e1f328b48acad",
        ("problem", "solution", "level"),
        _solved,
        TRAIN_AND_TEST,
        "default",
        levels=True,
    ),
    "math-500": DataSet(
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        ("problem", "answer", "level"),
        _columns("problem", "answer", "level"),
        levels=True,
    ),
    # 1,791,700 rows: 17,917 a hundred times
    "dapo-math-17k": DataSet(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        ("prompt", "reward_model"),
        _dapo,
        TRAIN,
    ),
    # the English ones, deduplicated by the authors of Open-R1: AR3PO's training set has 14k of them
    "dapo-math-17k-en": DataSet(
        "open-r1/DAPO-Math-17k-Processed",
        "31dd309567e3da778038cc87d868b6097a3ccf68",
        ("prompt", "reward_model"),
        _dapo,
        TRAIN,
        "en",
    ),
    # 30, 30, 40 and 272 rows
    "aime24": DataSet(
        "math-ai/aime24",
        "83a7f387baaa524a8bda0022eac0541582297103",
        ("problem", "solution"),
        _solved,
    ),
    "aime25": DataSet(
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        ("problem", "answer"),
        _columns("problem", "answer"),
    ),
    "amc23": DataSet(
        "math-ai/amc23",
        "80815d37005feb82cd7f8fbc6901d5d3eff43057",
        ("question", "answer"),
        _columns("question", "answer"),
    ),
    "minerva": DataSet(
        "math-ai/minervamath",
        "ee46ddc498933b1977577953250ca5c66be64f96",
        ("question", "answer"),
        _columns("question", "answer"),
    ),
    # open-ended, text only, English, competitions: 674 rows, an evaluation set whose only split is called train
    "olympiadbench": DataSet(
        "Hothan/OlympiadBench",
        "91184b52131e7fc9455fef848035173aea8cc01a",
        ("question", "final_answer"),
        _olympiad,
        {"test": "train"},
        "OE_TO_maths_en_COMP",
        optional=("context",),
        files="OlympiadBench/OE_TO_maths_en_COMP/*",
    ),
    # the 198 rows of GPQA Diamond
    "gpqa": DataSet(
        "Idavidrein/gpqa",
        "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        GPQA,
        _gpqa,
        {"test": "train"},
        "gpqa_diamond",
        CHOICE,
        gated=True,
    ),
    # 93,733 rows, several GB because of the solutions that come along; AERO trains on 40k of its problems
    "openr1-math": DataSet(
        "open-r1/OpenR1-Math-220k",
        "e4e141ec9dea9f8326f4d347be56105859b2bd68",
        ("problem", "answer"),
        _columns("problem", "answer"),
        TRAIN,
        "default",
        files="data/train-*",
    ),
    # 40,315 rows
    "deepscaler": DataSet(
        "agentica-org/DeepScaleR-Preview-Dataset",
        "b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
        ("problem", "answer"),
        _columns("problem", "answer"),
        TRAIN,
    ),
}


def rows(
    name,
    split="train",
    n=None,
    *,
    seed=0,
    template=None,
    levels=None,
    path=None,
    revision=None,
    verifier=None,
):
    """Problems as dictionaries with id, prompt, answer, level, and a configuration to record; see `workbench.problems.hub`."""
    key = str(name).lower().replace("_", "-")
    _check(key, name, split, n, template, levels, revision)
    entry = DATA_SETS[key]
    revision, template = revision or entry.revision, template or entry.template
    table = _local(key, Path(path), split) if path is not None else _from_hub(key, split, revision)
    missing = [column for column in entry.columns if column not in table.column_names]
    if missing:
        there = ", ".join(table.column_names)
        raise ValueError(
            f"{key}: column {missing[0]!r} is missing; {path or entry.repository} has {there}"
        )
    used = [column for column in entry.columns + entry.optional if column in table.column_names]
    found, left_out = _distinct(key, table.select_columns(used))
    found = [row for row in found if levels is None or row["level"] in levels]
    if verifier is not None:
        found, left_out["gold answer not verified"] = _verified(found, verifier)
    left_out = {reason: count for reason, count in left_out.items() if count}
    if left_out:
        told = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        warnings.warn(f"{key}: rows left out: {told}", stacklevel=3)
    found = _subset(key, split, found, n, seed)
    config = {
        "family": "hub",
        "name": key,
        "split": split,
        "n": n,
        "seed": seed,
        "template": template,
        "levels": None if levels is None else list(levels),
        "left_out": left_out,
    }
    config |= (
        {"path": str(path)}
        if path is not None
        else {"repository": entry.repository, "revision": revision}
    )
    return [row | {"prompt": template.replace("{prompt}", row["prompt"])} for row in found], config


def command(name, revision=None):
    """The command that fetches a data set, to be run where there is a network."""
    entry = DATA_SETS[name]
    files = f" --include {shlex.quote(entry.files)}" if entry.files else ""
    return f"hf download {entry.repository} --repo-type dataset --revision {revision or entry.revision}{files}"


def _check(key, name, split, n, template, levels, revision):
    if key not in DATA_SETS:
        raise ValueError(f"name={name!r}: no such data set; there are {', '.join(DATA_SETS)}")
    if split not in DATA_SETS[key].splits:
        raise ValueError(f"split={split!r}: {key} has {', '.join(DATA_SETS[key].splits)}")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise ValueError(f"n={n!r}: a positive whole number is needed, or None for all")
    if template is not None and (not isinstance(template, str) or "{prompt}" not in template):
        raise ValueError(
            f"template={template!r}: text with {{prompt}} in it is needed, such as workbench.datasets.hub.BOXED"
        )
    if levels is not None and not DATA_SETS[key].levels:
        raise ValueError(
            f"levels={levels!r}: problems of {key} have no levels; math and math-500 have"
        )
    if levels is not None and (isinstance(levels, (int, str)) or not set(levels) <= set(range(6))):
        raise ValueError(
            f"levels={levels!r}: several of 1 to 5, and 0 for unknown, are needed, such as (3, 4, 5)"
        )
    if revision is not None and not re.fullmatch(r"[\w./-]+", str(revision)):
        raise ValueError(f"revision={revision!r}: a commit, tag or branch is needed")


def _distinct(key, table):
    """Different problems in the order of the table, and how many rows were left out for which reason."""
    found, answers, left_out = {}, {}, Counter()
    for row in _rows(table):
        question, answer, level = DATA_SETS[key].read(row)
        question, answer = _text(question), _plain(_text(answer))
        if not question or not answer:
            left_out["without question or answer"] += 1
            continue
        identity = f"{key}/{hashlib.blake2b(question.encode(), digest_size=8).hexdigest()}"
        found.setdefault(
            identity, {"id": identity, "prompt": question, "answer": answer, "level": level}
        )
        answers.setdefault(identity, set()).add(answer)
    disputed = {identity for identity, several in answers.items() if len(several) > 1}
    left_out["with several answers"] = len(disputed)
    return [row for identity, row in found.items() if identity not in disputed], left_out


def _rows(table):
    """Rows as dictionaries, read in batches: DAPO-Math-17k has 1.8 million."""
    for batch in table.iter(1000):
        for values in zip(*batch.values()):
            yield dict(zip(batch, values))


def _text(value):
    return "" if value is None else str(value).strip()


def _plain(answer):
    """An answer without dollar signs around mathematics; 27.0, a whole number that went through a float, is 27."""
    answer = re.sub(r"(?<!\\)\$", "", answer).strip()
    return re.sub(r"\A(-?\d+)\.0\Z", r"\1", answer)


def _verified(found, verifier):
    """Rows whose gold answer scores 1 against itself in a box, and how many do not. One at a time: some cannot be read."""

    def holds(row):
        try:
            return verifier.score([f"\\boxed{{{row['answer']}}}"], [row["answer"]]).reward[0] == 1.0
        except ValueError:
            return False

    kept = [row for row in found if holds(row)]
    return kept, len(found) - len(kept)


def _subset(key, split, found, n, seed):
    """n of the rows, in their order; which ones depends on the seed and the ids, not on the order."""
    if (n is not None and n > len(found)) or not found:
        raise ValueError(f"n={n}: {key} {split} has {len(found)} problems that fit")
    if n is None:
        return found
    ids = sorted(row["id"] for row in found)
    chosen = {ids[i] for i in generator(seed, "hub", key, split).permutation(len(ids))[:n]}
    return [row for row in found if row["id"] in chosen]


def _from_hub(key, split, revision):
    """The split at exactly this revision, from the hub or from a copy in the cache."""
    datasets, entry = _import_datasets(), DATA_SETS[key]
    try:
        table = datasets.load_dataset(
            entry.repository, entry.config, split=entry.splits[split], revision=revision
        )
    except datasets.exceptions.DatasetNotFoundError as error:
        raise _not_found(key, revision, str(error)) from None
    except (ConnectionError, FileNotFoundError):
        return _downloaded(key, split, revision)
    except ValueError as error:  # offline, and another configuration than this is in the cache
        if "in the cache" not in str(error):
            raise
        return _downloaded(key, split, revision)
    files = [file["filename"] for file in table.cache_files]
    if re.fullmatch("[0-9a-f]{40}", revision) and not all(revision in file for file in files):
        return _downloaded(
            key, split, revision
        )  # offline, `datasets` gives whatever revision it has
    return table


def _downloaded(key, split, revision):
    """The split from what `hf download` left in the cache; ConnectionError with the command where there is nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    entry = DATA_SETS[key]
    try:
        folder = snapshot_download(
            entry.repository, repo_type="dataset", revision=revision, local_files_only=True
        )
        return _directory(key, Path(folder), split)
    except (LocalEntryNotFoundError, FileNotFoundError, ValueError):
        gate = (
            ", after accepting its terms on its page and `hf auth login` (it is gated)"
            if entry.gated
            else ""
        )
        raise ConnectionError(
            f"{key}: {entry.repository} is not on this machine and the hub cannot be reached; run `{command(key, revision)}` "
            f"where there is a network{gate}, bring the cache (HF_HOME) here and set HF_HUB_OFFLINE=1, or give path="
        ) from None


def _not_found(key, revision, message):
    """The one-line error for what the hub refused."""
    entry = DATA_SETS[key]
    if "gated" in message:
        return PermissionError(
            f"{key}: {entry.repository} is gated: accept its terms at "
            f"https://huggingface.co/datasets/{entry.repository}, then `hf auth login`"
        )
    if "Revision" in message:
        return ValueError(
            f"revision={revision!r}: {entry.repository} has no such revision; the pinned one is {entry.revision}"
        )
    return FileNotFoundError(f"{key}: {entry.repository}: {message}")


def _local(key, path, split):
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
    return _import_datasets().load_dataset(
        FORMATS[path.suffix], data_files=str(path), split="train"
    )


def _directory(key, folder, split):
    """The split from a directory: the files of `DataSet.files`, else what its card or the names of its files say."""
    datasets, entry = _import_datasets(), DATA_SETS[key]
    files = sorted(map(str, folder.glob(entry.files))) if entry.files else []
    if files:
        return datasets.load_dataset(
            FORMATS[Path(files[0]).suffix], data_files=files, split="train"
        )
    configs = datasets.get_dataset_config_names(str(folder))
    config = entry.config if entry.config in configs else configs[0]
    there = datasets.get_dataset_split_names(str(folder), config)
    chosen = [name for name in (entry.splits[split], split) if name in there]
    if not chosen:
        raise ValueError(f"split={split!r}: {folder} has {', '.join(there)}")
    return datasets.load_dataset(str(folder), config, split=chosen[0])


def _import_datasets():
    try:
        import datasets
    except ImportError:
        raise ImportError(
            "data sets of the hub need a package: pip install 'datasets>=4.0,<5'"
        ) from None
    return datasets
