"""Who watches a run: TensorBoard, wandb and trackio by name, or any object with three methods.

    def start(self, manifest):    # the run's manifest, a dict; again after a pause or a resume
    def log(self, row, round):    # the numbers of a round, name to number
    def finish(self):             # the rounds asked for are done, or something stopped them

An evaluation is logged as a row of its own, with `evaluation/accuracy`. The run does not depend on
its trackers: one that raises is dropped with one warning, and the run goes on. A package is loaded
when it is named.

The trackers of the package accelerate were tried in place of these. They log the same numbers, but
they neither hide the rounds that a resumed run repeats nor go on in the same run of a dashboard
unless they are given what `TensorBoard` and `Dashboard` hold anyway, and they would need
accelerate, which a CPU run does without.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import warnings
from collections.abc import Mapping
from contextvars import Context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from workbench.records.files import TENSORBOARD
from workbench.utils.validation import brief

NAMES = ("tensorboard", "wandb", "trackio")
METHODS = ("start", "log", "finish")  # what every tracker offers


class TensorBoard:
    """Event files in a directory: `tensorboard --logdir runs` shows all runs under it.

    Parameters
    ----------
    path : path
        The directory of the event files.
    """

    def __init__(self, path: Any) -> None:
        _load("tensorboard")
        self.path = Path(path)
        self.manifest: Mapping[str, Any] = {}
        self.writer: Any = None

    def start(self, manifest: Mapping[str, Any]) -> None:
        """Keep the manifest; the file is made by the first row."""
        self.manifest = manifest

    def log(self, row: Mapping[str, Any], round: int) -> None:
        """Write every number as a scalar at step `round`.

        What an earlier process wrote from that step on is hidden: those rounds are repeated.
        """
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is None:
            self.writer = SummaryWriter(self.path, purge_step=round)
            # An indented text is shown as code, with its line breaks.
            text = json.dumps(self.manifest, indent=1).replace("\n", "\n    ")
            self.writer.add_text("manifest", f"    {text}", round)
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, round)
        # Each row is flushed, so that a dashboard follows the run and a killed one loses nothing.
        self.writer.flush()

    def finish(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class Dashboard:
    """wandb or trackio, which share their functions: one run there for each record.

    The runs are in the project `workbench`. A resumed run goes on in the same run there, which the
    record's manifest identifies. Both keep everything on this machine if they are told so: wandb by
    WANDB_MODE=offline, trackio unless a space is named. Other runs that are open in this process,
    also those of your own `wandb.init()`, go on beside it.

    Parameters
    ----------
    package : {"wandb", "trackio"}
    """

    def __init__(self, package: str) -> None:
        self.name = package
        self.package = _load(package)
        self.run: Any = None

    def start(self, manifest: Mapping[str, Any]) -> None:
        """Open the run, named by method, seed and a key of the record; its configuration is the
        manifest.
        """
        # The manifest says when and where the run was started, so two runs of one method and seed
        # have different keys, and a resumed run has the key of its beginning.
        content = json.dumps(manifest, sort_keys=True)
        key = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
        name = f"{manifest['method']['name']}-{manifest['seed']}-{key}"
        options: dict[str, Any] = {"name": name, "config": manifest, "resume": "allow"}
        if self.name == "wandb":  # trackio resumes by name
            options |= {"id": name, "reinit": "create_new"}
        self.finish()
        # trackio closes the run that the context names, and names the new one there.
        self.run = Context().run(self.package.init, project="workbench", **options)

    def log(self, row: Mapping[str, Any], round: int) -> None:
        """Send the numbers at step `round`; wandb leaves out steps that it has already."""
        self.run.log(_numbers(row), step=round)

    def finish(self) -> None:
        """Close the run."""
        if self.run is not None:
            run, self.run = self.run, None
            run.finish()


class Trackers:
    """Combines several trackers; one that fails is dropped with a warning.

    Parameters
    ----------
    asked : name, object, or several of them
        Names in `NAMES` or objects with start, log and finish.
    path : path
        Directory of the record; TensorBoard's files go beside it.

    Raises
    ------
    ValueError
        For an unknown name, or an object without the three methods.
    ImportError
        For a package that is not installed, with the command that installs it.
    """

    def __init__(self, asked: Any, path: Any) -> None:
        several = asked if isinstance(asked, list | tuple) else (asked,)
        self.members: list[Any] = []
        for each in several:
            if each == "tensorboard":
                each = TensorBoard(Path(path) / TENSORBOARD)
            elif isinstance(each, str) and each in NAMES:
                each = Dashboard(each)
            # A class has the methods too, but cannot be called as a tracker.
            elif isinstance(each, str | type) or not all(hasattr(each, name) for name in METHODS):
                raise ValueError(
                    f"trackers: {brief(each)}; allowed are {', '.join(map(repr, NAMES))} and "
                    "objects with start, log and finish"
                )
            self.members.append(each)

    def start(self, manifest: Mapping[str, Any]) -> None:
        """Start all."""
        self._call_all("start", manifest)

    def log(self, row: Mapping[str, Any], round: int) -> None:
        """Log to all."""
        self._call_all("log", row, round)

    def finish(self) -> None:
        """Finish all."""
        self._call_all("finish")

    def _call_all(self, name: str, *arguments: Any) -> None:
        for member in list(self.members):
            try:
                # A copy, which it may change.
                getattr(member, name)(*copy.deepcopy(arguments))
            except Exception as error:
                self.members.remove(member)
                warnings.warn(
                    f"tracker {type(member).__name__}: {name} raised {type(error).__name__}: "
                    f"{error}; the run goes on without it",
                    RuntimeWarning,
                    stacklevel=3,
                )


def _load(package: str) -> ModuleType:
    """The package; ImportError with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImportError(f"trackers={package!r} needs a package: pip install {package}") from None


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The row without anything that is not a finite number."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float | np.number | np.bool_) and np.isfinite(value)
    }
