"""What a run leaves on disk, and how it is read again."""

from workbench.records.files import FORMAT, RecordError, RecordWarning
from workbench.records.packing import pack
from workbench.records.record import Record, damage_of, examined, load
from workbench.records.shelf import exists, record_paths
from workbench.records.writer import Writer, refuse_other_files

__all__ = [
    "FORMAT",
    "Record",
    "RecordError",
    "RecordWarning",
    "Writer",
    "damage_of",
    "examined",
    "exists",
    "load",
    "pack",
    "record_paths",
    "refuse_other_files",
]
