"""What goes wrong with a record."""


class RecordError(OSError):
    """A record cannot be written or read. The message names the file and the cause."""


class MissingPart(RecordError, FileNotFoundError):
    """A file of a record is not there, or went while somebody was about to read it."""


class RecordWarning(UserWarning):
    """A part of a record is missing or damaged, or a run goes on under other conditions.

    The message names the part.
    """
