"""Every exception flatout raises on purpose, in one tree.

A message says what happened, the value seen, the limit, and what to do next. The command line prints it as one
line; a traceback is for bugs only.
"""

_FIRST_CHARACTERS, _LAST_CHARACTERS = 1200, 600


class FlatoutError(Exception):
    """Root of the tree. `exit_code` is what the command line returns."""

    exit_code = 1
    quiet = False  # whether another process says it
    details: tuple[str, ...] = ()  # shown before the message: lines of the user's own code that led here

    def __str__(self) -> str:
        """However long the names and values in it are: how it begins, and how it ends, which says what to do."""
        text = super().__str__()
        if len(text) <= _FIRST_CHARACTERS + _LAST_CHARACTERS:
            return text
        return f"{text[:_FIRST_CHARACTERS]} … {text[-_LAST_CHARACTERS:]}"


class UserError(FlatoutError):
    """The input is wrong; nothing was changed."""

    exit_code = 2


class BadFile(UserError):
    """A file is not what it should be: its kind, size, depth, aliases or types (untrusted.py)."""


class ConfigError(UserError):
    """A key or a value of the configuration is wrong."""


class DataError(UserError):
    """The dataset cannot be used as asked."""


class DataChanged(DataError):
    """A sample is not what was read, or packed, under its name before."""


class RunDirectoryError(UserError):
    """The run directory is missing, in use, or does not fit the command."""


class StorageError(FlatoutError):
    """A store did not give what was asked of it; exit code 2 where a run's preflight blames address or credentials."""


class DamagedArchive(StorageError):
    """A tar or an index that is not whole, or that no honest program wrote."""

    exit_code = 2


class ObjectMissing(StorageError):
    """No object of that name."""


class ObjectTooLarge(ObjectMissing):
    """It is there, and larger than any picture: nobody reads it."""


class AccessDenied(StorageError):
    """The store refused the credentials."""


class StoreUnreachable(StorageError):
    """No answer from the store within the deadline."""


class NoSpace(FlatoutError):
    """A disk, /dev/shm or memory budget is too small for what must fit."""

    exit_code = 2


class BadBundle(FlatoutError):
    """Bytes that should be a batch are not: never used, the batch is made again."""


class ServiceUnavailable(FlatoutError):
    """The service of shared batches does not answer, or not sensibly."""


class RunFailed(FlatoutError):
    """Training cannot go on; the cause is in the message and in summary.json."""


class OwnCodeFailed(RunFailed):
    """Code that a recipe names raised an exception while training."""


class WorkerFailed(RunFailed):
    """A loader worker failed for good."""


class TooManyQuarantined(RunFailed):
    """More samples are unusable than the configured share allows."""


class NotFinite(RunFailed):
    """A loss or a gradient is NaN or infinite."""


class EndedBySomeRank(FlatoutError):
    """A rank's error as another process passes it on; `quiet` where that rank says it itself."""

    def __init__(self, message: str, exit_code: int = 1, quiet: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.quiet = quiet


class CheckpointCorrupt(FlatoutError):
    """A checkpoint does not match its digest."""


class ExportRefused(FlatoutError):
    """An exported model does not say what the run's own model says; nothing was written."""


class Interrupted(FlatoutError):
    """Ctrl-C, SIGTERM or SIGHUP, after a checkpoint."""

    exit_code = 130
