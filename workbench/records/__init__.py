"""What a run leaves on disk, and how it is read again."""

from workbench.records.record import (
    FORMAT,
    Record,
    RecordError,
    RecordWarning,
    Writer,
    load,
    refuse_other_files,
    thin,
)

__all__ = [
    "FORMAT",
    "Record",
    "RecordError",
    "RecordWarning",
    "Writer",
    "load",
    "refuse_other_files",
    "thin",
]
