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


def extra(name: str) -> str:
    """How packages that not everyone needs are installed: from a clone, as no index of packages has this fedpriv."""
    return f"in the clone: uv sync --extra {name}, or pip install '.[{name}]'"


def first_line(error: BaseException) -> str:
    """Of a library's error, what fits into one of ours; the name of its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def in_a_line(error: BaseException) -> str:
    """The kind of an exception of other code, and the first line of what it says."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"


_SHOWN = 16  # names that an error lists
_ELSEWHERE = {
    "learning_rate": "lr",
    "epochs": "local_epochs",
    "num_epochs": "local_epochs",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "fraction_fit": "participation",
    "noise_multiplier": "noise",
    "max_grad_norm": "clip",
}
"""What other libraries call a key of the config -> what it is called here."""


class UnknownName(UsageError):
    """A name that is not known; the message suggests the nearest one.

    Args:
        otherwise: what else, besides the known names, it may be.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], otherwise: str = "") -> None:
        self.known = sorted(known)
        super().__init__(f"unknown {what} {name!r}; {_hint(name, self.known, 'known', otherwise)}")


class NoSuchOption(UnknownName):
    """An option that a method, or whatever else has options, does not have."""

    def __init__(self, owner: str, name: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        UsageError.__init__(self, f"{owner} has no option {name!r}; {_hint(name, self.known, 'it has')}")


def _hint(name: str, known: list[str], what: str, otherwise: str = "") -> str:
    near, otherwise = _nearest(name, known), otherwise and f", or {otherwise}"
    shown = [*known[:_SHOWN], f"... ({len(known)} in all)"] if len(known) > _SHOWN + 2 else known
    return f"{what}: {', '.join(shown) or 'none'}{otherwise}" if near is None else f"did you mean {near!r}{otherwise}?"


def _nearest(name: str, known: list[str]) -> str | None:
    """The known name that is nearest; of the keys of a section, as in ``train.lr``, by what comes after the section."""
    section, dot, last = name.rpartition(".")
    within = {one.removeprefix(section + dot): one for one in known if dot and one.rpartition(".")[0] == section}
    if not within:
        last, within = name, {one: one for one in known}
    if (ours := _ELSEWHERE.get(last)) in within:
        return within[ours]
    near = difflib.get_close_matches(last, within, n=1, cutoff=0.5)
    return within[near[0]] if near else None
