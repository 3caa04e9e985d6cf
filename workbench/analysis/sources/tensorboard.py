"""Event files of TensorBoard. They are read by the package tensorboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.analysis.sources.log import Log

SOURCE = "TensorBoard events"
FILES = "*.tfevents.*"


def fits(path: Path) -> bool:
    """Whether there are event files, of one run: those of several are in several folders."""
    if path.is_file():
        return ".tfevents." in path.name
    return len({each.parent for each in path.rglob(FILES)}) == 1


def read(path: Path) -> Log:
    """All scalars, in the order in which they were written, with `step` and `wall_time`.

    Those of a step are one row, so that any of them can be the cost of the others.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise ImportError(
            f"{path}: event files need tensorboard: pip install tensorboard"
        ) from None
    # Several files are one run that was started again.
    files = [path] if path.is_file() else sorted(path.rglob(FILES))
    scalars = []
    for each in files:
        # No limit on their number, and steps that were made again are not thrown away here.
        events = EventAccumulator(str(each), {"scalars": 0}, purge_orphaned_data=False).Reload()
        for tag in events.Tags()["scalars"]:
            scalars += [(tag, event) for event in events.Scalars(tag)]
    rows: list[dict[str, Any]] = []
    for tag, event in sorted(scalars, key=lambda scalar: scalar[1].wall_time):
        if not rows or rows[-1]["step"] != event.step or tag in rows[-1]:
            rows.append({"step": event.step, "wall_time": event.wall_time})
        rows[-1][tag] = event.value
    return Log(path, SOURCE, rows)
