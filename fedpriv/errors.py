"""The errors a user can cause or meet, each with its exit code."""

import difflib
from collections.abc import Iterable


class FedprivError(Exception):
    """A failure that is reported to the user in one or two lines (exit code 1)."""

    exit_code = 1


class UsageError(FedprivError):
    """Invalid input: a name, a value, or a file (exit code 2)."""

    exit_code = 2


class ConditionMet(FedprivError):
    """A condition under which the user wants a command to fail (exit code 3)."""

    exit_code = 3


class ClientDiverged(FedprivError):
    """A client's loss or weights are not finite."""

    def __init__(self, client: int, round: int, lr: float) -> None:
        self.client, self.round = client, round
        super().__init__(
            f"client {client} diverged in round {round}: its loss or its weights are not finite; "
            f"lower train.lr ({lr:g}) or set train.on_nan=drop to go on without what it trained"
        )


class UploadRefused(FedprivError):
    """The server refuses what a client sent, and the config wants the run to stop then."""


class SuspiciousDownload(FedprivError):
    """A client refuses what the server sent: it shows marks of an attack on its data."""


def first_line(error: BaseException) -> str:
    """Of a library's error, what fits into one of ours; the name of its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def in_a_line(error: BaseException) -> str:
    """The kind of an exception of other code, and the first line of what it says."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"


_SHOWN = 16  # names that an error lists


class UnknownName(UsageError):
    """A name that is not known; the message suggests the nearest one."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        near = difflib.get_close_matches(name, self.known, n=1, cutoff=0.5)
        shown = [*self.known[:_SHOWN], f"... ({len(self.known)} in all)"] if len(self.known) > _SHOWN + 2 else self.known
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(shown) or 'none'}"
        super().__init__(f"unknown {what} {name!r}; {hint}")
