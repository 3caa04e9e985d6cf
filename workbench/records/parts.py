"""The names of everything that a run writes.

This is the one place that names files and folders. A file with any other name is never read,
counted, overwritten or deleted.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from workbench.records.errors import RecordError
from workbench.records.files import WRITING, check_ordinary
from workbench.utils.validation import cause_of

FORMAT = 3  # of the directory that a run writes

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
ROLLOUTS = "rollouts"  # a folder with one part a round
CHECKPOINTS = "checkpoint"  # a folder
CHECKPOINT = "state.safetensors"
LOCK = "lock.json"
TENSORBOARD = "tensorboard"  # a folder that belongs to TensorBoard
SHELF = "shelf.json"  # of a folder of packed runs
KINDS = ("rounds", "evals", "rollouts")  # the tables of a record

# Folder -> pattern of the names in it. Rounds have six digits at least, and more where a run is
# longer than that, so that a round has one name only: 0000012 is none of round 12. A killed process
# may leave a file of safetensors, which writes beside the place of its file under another name.
_NAMES = {
    ".": rf"({MANIFEST}|{JOURNAL}|failed-\d{{6,}}\.parquet)({WRITING})?|{LOCK}|{ROLLOUTS}|"
    rf"{CHECKPOINTS}|{TENSORBOARD}",
    ROLLOUTS: rf"([0-9]{{6}}|[1-9][0-9]{{6,}})\.parquet({WRITING})?",
    CHECKPOINTS: rf"{CHECKPOINT}({WRITING})?|\.tmp\w{{6}}",
}
UNFINISHED = rf".*{WRITING}|\.tmp\w{{6}}"


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
    files = [path for path in own_files(directory, ROLLOUTS) if path.suffix == ".parquet"]
    return dict(sorted((int(path.stem), path) for path in files))


def unfinished_files(directory: Path) -> list[Path]:
    """What a killed process was writing. Nothing in it is needed."""
    files = [path for folder in _NAMES for path in own_files(directory, folder)]
    return [path for path in files if re.fullmatch(UNFINISHED, path.name)]


def refuse_links(directory: Path) -> None:
    """Raise RecordError when a part of the record is a link, or no ordinary file or folder.

    A run that followed a symbolic link, or wrote to a file that has a second name elsewhere, would
    change what lies outside its directory. The directory itself may be reached through a link.
    """
    for folder in _NAMES:
        for path in own_files(directory, folder):
            try:
                if path.is_symlink() or not path.is_dir():
                    check_ordinary(path)
            except OSError as error:
                raise RecordError(
                    f"{path}: {cause_of(error)}, and a run writes inside its own directory only; "
                    "put the file or folder itself there, or name another directory"
                ) from None


def own_files(directory: Path, folder: str = ".") -> list[Path]:
    """The parts of the record in the directory itself (".") or in one of its folders."""
    place = directory / folder
    if not place.is_dir():
        return []
    return sorted(place / name for name in os.listdir(place) if re.fullmatch(_NAMES[folder], name))
