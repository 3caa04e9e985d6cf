"""The parts of a record: every file and folder that a run writes, and what its tables must hold.

This is the one place that names them. The reader, the writer, the lock and `thin` all ask here, so
a file with any other name is never read, counted, overwritten or deleted.
"""

from __future__ import annotations

import re
from pathlib import Path

from workbench.records.errors import RecordError

FORMAT = 2  # what is written
READABLE_FORMATS = (1, 2)

MANIFEST = "manifest.json"
ROUNDS = "rounds.parquet"
EVALS = "evals.parquet"
ROLLOUTS = "rollouts"  # a folder with one part a round
MERGED = "rollouts.parquet"  # of a thinned record: its parts in one file, which is much smaller
CHECKPOINTS = "checkpoint"  # a folder
CHECKPOINT = "state.safetensors"
LOCK = "lock.json"
TENSORBOARD = "tensorboard"  # a folder that belongs to TensorBoard
WRITING = ".writing"  # the end of the name of a file that is not complete yet

# Folder -> pattern of the names in it. Rounds have six digits at least, and more where a run is
# longer than that.
_NAMES = {
    ".": rf"({MANIFEST}|{ROUNDS}|{EVALS}|{MERGED}|failed-\d{{6,}}\.parquet)({WRITING})?"
    rf"|{LOCK}|{ROLLOUTS}|{CHECKPOINTS}|{TENSORBOARD}",
    ROLLOUTS: rf"\d{{6,}}\.parquet({WRITING})?",
    CHECKPOINTS: rf"{CHECKPOINT}({WRITING})?",
}

# What the columns hold that reading a record relies on. A table in which one of them holds anything
# else counts as damaged, and so does one without a column of `NEEDED_COLUMNS`.
COLUMNS = {
    ROUNDS: {
        "round": "whole numbers",
        "rollouts": "numbers",
        "seconds": "numbers",
        "flops": "numbers",
    },
    EVALS: {
        "round": "whole numbers",
        "problem": "texts",
        "samples": "numbers",
        "correct": "numbers",
        "greedy": "numbers",
    },
    ROLLOUTS: {"round": "whole numbers"},
    MERGED: {"round": "whole numbers", "part": "whole numbers"},
}
NEEDED_COLUMNS = {
    ROUNDS: ("round",),
    EVALS: ("round", "problem", "samples", "correct", "greedy"),
    ROLLOUTS: (),  # a thinned record keeps what its owner chose
    MERGED: ("part",),  # the number of the part that a row comes from
}

# What columns were called in format 1: table -> new name -> old name.
OLD_COLUMNS = {
    ROUNDS: {"replay_stored": "reuse_stored", "replay_bytes": "reuse_bytes"},
    EVALS: {},
    ROLLOUTS: {"logprob_diff": "drift"},
    MERGED: {},  # there was none
}


def rollout_part(directory: Path, number: int) -> Path:
    """The file with the rollouts of round `number`."""
    return directory / ROLLOUTS / f"{number:06d}.parquet"


def failure_part(directory: Path, number: int) -> Path:
    """The file with the rollouts that stopped round `number`."""
    return directory / f"failed-{number:06d}.parquet"


def checkpoint_part(directory: Path) -> Path:
    """The file with the checkpoint."""
    return directory / CHECKPOINTS / CHECKPOINT


def rollout_parts(directory: Path) -> dict[int, Path]:
    """Round -> its file, for the rounds that have one, in order."""
    numbers = {}
    for path in _own_files(directory, ROLLOUTS):
        stem = path.name.removesuffix(".parquet")
        # A round has one name only: 0000012.parquet would be a second one for round 12.
        if stem.isdecimal() and path == rollout_part(directory, int(stem)):
            numbers[int(stem)] = path
    return dict(sorted(numbers.items()))


def unfinished_files(directory: Path) -> list[Path]:
    """What a killed process was writing. Nothing in it is needed."""
    return [
        path
        for folder in _NAMES
        for path in _own_files(directory, folder)
        if path.name.endswith(WRITING)
    ]


def refuse_links(directory: Path) -> None:
    """Raise RecordError when a part of the record is a symbolic link.

    A run that followed it would write to, or delete, files outside its directory. The directory
    itself may be reached through a link.
    """
    for folder in _NAMES:
        for path in _own_files(directory, folder):
            if path.is_symlink():
                raise RecordError(
                    f"{path}: this is a symbolic link, and a run writes inside its own directory "
                    "only; put the file or folder itself there, or name another directory"
                )


def refuse_other_files(directory: Path) -> None:
    """Raise ValueError for a directory without a record that is not empty.

    What a start that was killed at once leaves there is no obstacle.
    """
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"out={str(directory)!r}: this is a file; name an empty or new directory")
    # The lock is taken before the manifest is written, so these two may be alone in the directory.
    left_by_a_start = {LOCK, MANIFEST + WRITING}
    if directory.exists() and {path.name for path in directory.iterdir()} - left_by_a_start:
        raise ValueError(
            f"out={str(directory)!r}: the directory holds files that are no record; name an empty "
            "or new one"
        )


def _own_files(directory: Path, folder: str) -> list[Path]:
    """The parts of the record in the directory itself (".") or in one of its folders."""
    place = directory if folder == "." else directory / folder
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if re.fullmatch(_NAMES[folder], path.name))
