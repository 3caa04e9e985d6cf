"""What goes wrong with a record."""


class RecordError(OSError):
    """A record cannot be written or read. The message names the file and the cause."""


class RecordWarning(UserWarning):
    """A part of a record is missing or damaged, or a run goes on under other conditions.

    The message names the part.
    """
