"""Event files of TensorBoard. They are read by the package tensorboard."""

from __future__ import annotations

from pathlib import Path

from workbench.analysis.sources.log import Log

SOURCE = "TensorBoard events"
FILES = "*.tfevents.*"


def fits(path: Path) -> bool:
    """Whether there are event files, of one run: those of several are in several folders."""
    if path.is_file():
        return ".tfevents." in path.name
    return len({each.parent for each in path.rglob(FILES)}) == 1


def read(path: Path) -> Log:
    """All scalars, in the order in which they were written, with `step` and `wall_time`."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise ImportError(
            f"{path}: event files need tensorboard: pip install tensorboard"
        ) from None
    # Several files are one run that was started again.
    files = [path] if path.is_file() else sorted(path.rglob(FILES))
    rows = []
    for each in files:
        # No limit on their number, and steps that were made again are not thrown away here.
        events = EventAccumulator(str(each), {"scalars": 0}, purge_orphaned_data=False).Reload()
        for tag in events.Tags()["scalars"]:
            rows += [
                {"step": e.step, "wall_time": e.wall_time, tag: e.value}
                for e in events.Scalars(tag)
            ]
    rows.sort(key=lambda row: row["wall_time"])
    return Log(path, SOURCE, rows)
