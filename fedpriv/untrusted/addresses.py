"""Addresses (URIs) and the secrets in them: what is shown and stored has ``***`` in their place, the rest stays in memory."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

# A text of another machine may be long, and made to be slow. So the time of both grows with its length, not with its square: of a
# scheme the last 32 characters are taken, and a name in a query ends where another ? begins one.
# A password may hold quotes, so an address goes on to the next space, but for quotes and the like at its end.
_FILE = r"(?P<file>(?i:sqlite|file)(?:\+\w+)?)"
_ADDRESS = re.compile(rf"(?:{_FILE}|(?P<scheme>[a-zA-Z][\w+.-]{{0,31}}))://(?(file)|(?P<rest>\S*[^\s'\"`,.:;)\]}}>]))")
_IN_QUERY = re.compile(r"(?i)([?&;](?=[^?=&;\s]*(?:pass|pwd|token|secret|key|odbc_connect))[^?=&;\s]+=)[^&;]+")
_LEAST = 4
"""Letters of a secret that is looked for by itself: a shorter one is a part of ordinary words."""

_whole: dict[str, str] = {}
"""Shown address -> the address with its secrets, of this process alone."""


def without_secrets(text: str) -> str:
    """A text in which every address has ``***`` in place of a password or a token: ``http://user:***@host``."""
    return _ADDRESS.sub(lambda found: found[0] if found["file"] else _shown(found["scheme"], found["rest"]), text)


def shown_address(uri: str) -> str:
    """:func:`without_secrets` of a text that is one address, whatever characters its password has."""
    scheme, _, rest = uri.partition("://")
    return uri if not rest or re.fullmatch(_FILE, scheme) else _shown(scheme, rest)


def keep_secrets(uri: str) -> str:
    """:func:`shown_address`; :func:`with_secrets` gives the whole one back in this process."""
    shown = shown_address(uri)
    if shown != uri:
        _whole[shown] = uri
    return shown


def with_secrets(shown: str) -> str | None:
    """The whole address; ``None``: its secrets are not known here."""
    return _whole.get(shown, None if HIDDEN in shown else shown)


def said_safely(text: str) -> str:
    """As :func:`without_secrets`, also without the secrets of this process's addresses where they stand alone."""
    for shown, whole in _whole.items():
        text = text.replace(whole, shown)
        start, end = _differing(shown, whole)
        for secret in {whole[start:end], unquote(whole[start:end])}:
            if len(secret) >= _LEAST:
                text = text.replace(secret, HIDDEN)
    return without_secrets(text)


def tracking_address(uri: str) -> str:
    """A tracking URI that MLflow can be given, with ``***`` in place of a password, which stays in this process's memory.

    Raises:
        ValueError: it is none.
    """
    shown = keep_secrets(uri)  # first, so that a message about a wrong one has no secret
    known = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
    if uri.partition(":")[0].partition("+")[0] not in known or not uri.isprintable():
        raise ValueError("not a tracking URI; such as http://host:5000, sqlite:////absolute/path/mlflow.db, or none")
    if uri.startswith("sqlite"):
        return shown
    wrong = "the host or the port cannot be right; such as http://host:5000; in a password, /, @ and spaces are percent-encoded"
    try:
        whole, parts = urlsplit(uri), urlsplit(shown)
        right = (whole.hostname, whole.port) == (parts.hostname, parts.port)
    except ValueError:  # its message has the address
        raise ValueError(wrong) from None
    if not right or " " in uri or (uri.startswith("http") and not parts.hostname):
        raise ValueError(wrong)
    return shown


def _shown(scheme: str, rest: str) -> str:
    # To the last @, since a password that was not quoted may hold one, or a slash.
    name, at, after = rest.rpartition("@")
    user, colon, _ = name.partition(":")
    if colon:
        name = f"{user}:{HIDDEN}"
    elif at and scheme.lower().startswith("http"):  # a token stands alone
        name = HIDDEN
    return f"{scheme}://" + _IN_QUERY.sub(rf"\1{HIDDEN}", f"{name}{at}{after}")


def _differing(shown: str, whole: str) -> tuple[int, int]:
    """Where the whole address has what the shown one has not."""
    start = next(i for i, (one, other) in enumerate(zip(shown, whole, strict=False)) if one != other)
    tail = 0
    while shown[-1 - tail] == whole[-1 - tail] and tail < len(whole) - start - 1:
        tail += 1
    return start, len(whole) - tail
