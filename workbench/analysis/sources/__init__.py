"""Runs of any trainer, from what they have logged. Each kind of log is one file here.

A file has `SOURCE`, its name in words; `fits(path)`, whether a path is such a log; and
`read(path)`, which gives a `Log`. Whoever adds a kind adds a file and puts it into `SOURCES`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.analysis.sources import records, tables, tensorboard, transformers, verl, wandb
from workbench.analysis.sources.log import Log, highest_rate, numeric
from workbench.records import record_paths
from workbench.utils.validation import brief, cause_of, check_size

# A directory of TRL may have event files too, so the fuller log comes first.
SOURCES = (records, transformers, wandb, tensorboard, verl, tables)
NAMED = re.compile(r"(?:^|[^a-z])(?:seed|s)[-_=]?(\d+)(?!.*\d)")
NEEDED = (
    "a record, a TRL or transformers output directory, TensorBoard events, an offline W&B run, a "
    "console log or dumps of verl, or a table of metrics (.jsonl, .csv, .tsv, .json or .parquet)"
)


def logs(path: Any) -> list[Log]:
    """The logs at a path, or those in its folders, such as seed-0, seed-1, ...

    Parameters
    ----------
    path : path
        Of one run, or of a folder of runs.

    Returns
    -------
    list of Log
        At least one.

    Raises
    ------
    ValueError
        For a path without any log, for a folder with logs of different kinds, and for a log that
        is damaged or empty.
    """
    path = Path(path)
    inner = record_paths(path)
    if not path.exists() and not inner:
        raise ValueError(f"path={str(path)!r}: there is no such file or directory")
    places = [path]
    if inner or not _kind(path):
        places = inner or _inside(path)
    kinds = {each: kind for each in places if (kind := _kind(each))}
    if not kinds:
        raise ValueError(f"path={str(path)!r}: no log of a run is there; {NEEDED} is needed")
    if len({(kind, each.is_dir()) for each, kind in kinds.items()}) > 1:
        listed = ", ".join(f"{each.name} ({kind.SOURCE})" for each, kind in kinds.items())
        raise ValueError(
            f"path={str(path)!r}: {listed} are logs of different kinds, which may be of one run; "
            "name one of them"
        )
    return one_a_run([log for each, kind in kinds.items() for log in _read(kind, each)])


def one_a_run(found: list[Log]) -> list[Log]:
    """One log a run. A run that was resumed has several, whose names begin with the time."""
    runs: dict[Any, list[Log]] = {}
    for log in found:
        runs.setdefault((log.run, log.seed) if log.run else id(log), []).append(log)
    joined = []
    for parts in runs.values():
        first, *more = sorted(parts, key=lambda log: log.path.name)
        for log in more:
            # Whether it has an end is what the last one says.
            notes = [*log.notes, f"{log.path.name} goes on with it"]
            first = replace(first, rows=first.rows + log.rows, notes=notes)
        joined.append(first)
    return joined


def _inside(path: Path) -> list[Path]:
    """What is in a folder, each thing once: W&B has links to its latest run beside the run."""
    if not path.is_dir():
        return []
    places: dict[Path, Path] = {}
    # Links come last, so that a thing is called by its own name.
    for each in sorted(path.iterdir(), key=lambda each: (each.is_symlink(), each)):
        places.setdefault(each.resolve(), each)
    return list(places.values())


def _kind(path: Path) -> Any:
    """The first source that fits a path, None where none does."""
    return next((kind for kind in SOURCES if kind.fits(path)), None)


def _read(kind: Any, path: Path) -> list[Log]:
    """A log, or those of the seeds in a table; its path names the seed where the log does not."""
    if path.is_file():
        check_size(path)
    try:
        log: Log = kind.read(path)
    except ImportError:
        raise
    except Exception as error:
        # Parsers of JSON, CSV, parquet and event files have errors of many classes.
        raise ValueError(
            f"{path}: damaged, it cannot be read as {kind.SOURCE}: {cause_of(error)}"
        ) from error
    if not log.rows:
        raise ValueError(f"{path}: the log is empty; nothing was logged yet")
    log.rows = [{name: _plain(value) for name, value in row.items()} for row in log.rows]
    log.rate = log.rate or highest_rate(log.rows)
    parts = _by_seed(log) if kind is tables else [log]
    if len(parts) > 1:
        return parts
    [log] = parts
    # A folder has no ending, although Qwen2.5 has a dot, and names what is in its metrics.jsonl.
    names = [path.stem, path.absolute().parent.name] if path.is_file() else [path.name]
    named = next(filter(None, (NAMED.search(name.lower()) for name in names)), None)
    if log.seed is None and named:
        log.seed = int(named[1])
        log.notes.append("its seed is taken from its name")
    return [log]


def _by_seed(log: Log) -> list[Log]:
    """The runs of a table, one for each value of its column `seed`."""
    values = [row.get("seed") for row in log.rows]
    seeds = list(dict.fromkeys(each for each in values if isinstance(each, str | int | float)))
    if len(seeds) == 1 and _is_seed(seeds[0]):
        return [replace(log, seed=int(seeds[0]))]
    # What is drawn anew for every row is the seed of no run.
    if len(seeds) < 2 or len(seeds) == len(values):
        return [log]
    if not all(map(_is_seed, values)):
        raise ValueError(
            f"{log.path}: its column seed has {brief(seeds)}; a table of several runs needs a "
            "whole number in every row"
        )
    rows = {seed: [row for row in log.rows if row["seed"] == seed] for seed in seeds}
    return [replace(log, rows=rows[seed], seed=int(seed), notes=list(log.notes)) for seed in seeds]


def _is_seed(value: Any) -> bool:
    return numeric(value) and value >= 0 and value == value // 1


def _plain(value: Any) -> Any:
    """A number where a text is one, such as "NaN" in exports of W&B; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
