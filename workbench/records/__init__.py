"""What a run leaves on disk, and how it is read again."""

from workbench.records.errors import RecordError, RecordWarning
from workbench.records.parts import FORMAT, refuse_other_files
from workbench.records.record import Record, load
from workbench.records.writer import Writer, thin

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
