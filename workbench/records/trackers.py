"""Who watches a run: TensorBoard, wandb and trackio by name, or any object of the same three methods.

A tracker is an object with

    def start(self, manifest):    # the run's manifest, a dict; again after a pause or a resume
    def log(self, row, round):    # the numbers of a round, name to number
    def finish(self):             # the rounds asked for are done, or something stopped them

An evaluation is logged as a row of its own, `evaluation/accuracy`. A run does not depend on who watches it: a tracker
that raises is left out from then on, with one warning. The packages are loaded when they are named.
"""

import hashlib
import importlib
import json
import warnings
from pathlib import Path

import numpy as np

NAMES = ("tensorboard", "wandb", "trackio")


class TensorBoard:
    """Event files in a directory, `tensorboard` beside the record: `tensorboard --logdir runs` shows all runs under it."""

    def __init__(self, path):
        _load("tensorboard")
        self.path, self.writer = Path(path), None

    def start(self, manifest):
        """Keeps the manifest; the file is made by the first row."""
        self.manifest = manifest

    def log(self, row, round):
        """Writes every number as a scalar at step `round`; what an earlier run wrote from that step on is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is None:
            self.writer = SummaryWriter(self.path, purge_step=round)
            self.writer.add_text(
                "manifest",
                f"    {json.dumps(self.manifest, indent=1)}".replace("\n", "\n    "),
                round,
            )
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def finish(self):
        """Closes the file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class Dashboard:
    """wandb or trackio, which share their functions: one run there for each record, in the project `workbench`.

    A resumed run goes on in the same run there, which its record's manifest identifies. Both keep everything on this
    machine if told so: WANDB_MODE=offline; trackio does unless a space is named.
    """

    def __init__(self, package):
        self.name, self.package = package, _load(package)

    def start(self, manifest):
        """Opens the run, named by method, seed and a key of the record; its configuration is the manifest."""
        key = hashlib.blake2b(
            json.dumps(manifest, sort_keys=True).encode(), digest_size=4
        ).hexdigest()
        name = f"{manifest['method']['name']}-{manifest['seed']}-{key}"
        identity = {"id": name} if self.name == "wandb" else {}  # trackio resumes by name
        self.package.init(
            project="workbench", name=name, config=manifest, resume="allow", **identity
        )

    def log(self, row, round):
        """Sends the numbers at step `round`; wandb leaves out steps that it has already."""
        self.package.log(_numbers(row), step=round)

    def finish(self):
        """Closes the run."""
        self.package.finish()


class Trackers:
    """Several trackers as one that never raises. Those asked for: names in `NAMES` or objects; path: the record's."""

    def __init__(self, asked, path):
        asked = asked if isinstance(asked, (list, tuple)) else (asked,)
        self.members = [_tracker(one, Path(path)) for one in asked]

    def start(self, manifest):
        """Starts all."""
        self._all("start", manifest)

    def log(self, row, round):
        """Logs to all."""
        self._all("log", row, round)

    def finish(self):
        """Finishes all."""
        self._all("finish")

    def _all(self, name, *arguments):
        for member in list(self.members):
            try:
                getattr(member, name)(*arguments)
            except Exception as error:
                self.members.remove(member)
                warnings.warn(
                    f"tracker {type(member).__name__}: {name} raised {type(error).__name__}: {error}; the run goes "
                    "on without it",
                    RuntimeWarning,
                    stacklevel=3,
                )


def _tracker(asked, path):
    if asked == "tensorboard":
        return TensorBoard(path / "tensorboard")
    if isinstance(asked, str) and asked in NAMES:
        return Dashboard(asked)
    if isinstance(asked, str) or not all(
        callable(getattr(asked, name, None)) for name in ("start", "log", "finish")
    ):
        raise ValueError(
            f"trackers: {asked!r}; allowed are {', '.join(map(repr, NAMES))} and objects with start, log and finish"
        )
    return asked


def _load(package):
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImportError(f"trackers={package!r} needs a package: pip install {package}") from None


def _numbers(row):
    """The row without what is no finite number."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and np.isfinite(value)
    }
