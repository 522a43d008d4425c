"""The errors a user can cause or meet, each with its exit code."""

import difflib
from collections.abc import Iterable, Iterator


class FedprivError(Exception):
    """A failure that is reported to the user in one or two lines (exit code 1)."""

    exit_code = 1


class UsageError(FedprivError):
    """Invalid input: a name, a value, or a file (exit code 2)."""

    exit_code = 2


class ConditionMet(FedprivError):
    """A condition on which the user wants a command to fail (exit code 3)."""

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
    """The server refuses what a client sent, and ``train.on_refused`` stops the run."""


class SuspiciousDownload(FedprivError):
    """A client refuses what the server sent, as it has marks of an attack on its data."""


def extra(name: str) -> str:
    """How to install an extra: from a clone, as fedpriv is not on a package index."""
    return f"in the clone: uv sync --extra {name}, or pip install '.[{name}]'"


def first_line(error: BaseException) -> str:
    """The first line of a library's error; the name of its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then what it was raised from, or while what was handled, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def in_a_line(error: BaseException) -> str:
    """The type of an exception, and the first line of its text."""
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
"""Names of config keys in other libraries -> their names here."""


class UnknownName(UsageError):
    """An unknown name; the message suggests the nearest one.

    Args:
        otherwise: what it may be instead of a known name, for the message.
        within: dotted keys; those whose last part is the name are suggested before names that are only similar.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], otherwise: str = "", within: Iterable[str] = ()) -> None:
        self.known = sorted(known)
        same = [repr(key) for key in within if key.rpartition(".")[2] == name.rpartition(".")[2]]
        hint = f"did you mean {' or '.join(same)}?" if same else _hint(name, self.known, "known", otherwise)
        super().__init__(f"unknown {what} {name!r}; {hint}")


class NoSuchOption(UnknownName):
    """An unknown option of a method, or of anything else with options."""

    def __init__(self, owner: str, name: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        UsageError.__init__(self, f"{owner} has no option {name!r}; {_hint(name, self.known, 'it has')}")


def _hint(name: str, known: list[str], what: str, otherwise: str = "") -> str:
    near, otherwise = _nearest(name, known), otherwise and f", or {otherwise}"
    shown = [*known[:_SHOWN], f"... ({len(known)} in all)"] if len(known) > _SHOWN + 2 else known
    return f"{what}: {', '.join(shown) or 'none'}{otherwise}" if near is None else f"did you mean {near!r}{otherwise}?"


def _nearest(name: str, known: list[str]) -> str | None:
    """The nearest known name; keys of a section, as ``train.lr``, are compared by the part after the section."""
    section, dot, last = name.rpartition(".")
    within = {key.removeprefix(section + dot): key for key in known if dot and key.rpartition(".")[0] == section}
    if not within:
        last, within = name, {key: key for key in known}
    if (ours := _ELSEWHERE.get(last)) in within:
        return within[ours]
    near = difflib.get_close_matches(last, within, n=1, cutoff=0.5)
    return within[near[0]] if near else None
