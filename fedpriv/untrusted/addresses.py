"""Secrets in addresses (URIs): what is shown or stored has ``***`` in their place; the secrets stay in memory."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

# A text from another machine may be long, and written to make a regular expression slow. The time of these two grows linearly: a
# scheme has at most 32 characters, and a name in a query holds no second "?".
# A password may hold quotes, so an address ends at the next space, without punctuation at its end.
_FILE = r"(?P<file>(?i:sqlite|file)(?:\+\w+)?)"
_ADDRESS = re.compile(rf"(?:{_FILE}|(?P<scheme>[a-zA-Z][\w+.-]{{0,31}}))://(?(file)|(?P<rest>\S*[^\s'\"`,.:;)\]}}>]))")
_IN_QUERY = re.compile(r"(?i)([?&;](?=[^?=&;\s]*(?:pass|pwd|token|secret|key|odbc_connect))[^?=&;\s]+=)[^&;]+")
_MIN_SECRET = 4
"""Length from which on a secret is also hidden outside of its address; a shorter one may be part of a word."""

_whole: dict[str, str] = {}
"""Shown address -> the address with its secrets."""


def without_secrets(text: str) -> str:
    """A text in which every address has ``***`` in place of a password or a token: ``http://user:***@host``."""
    return _ADDRESS.sub(lambda match: match[0] if match["file"] else _shown(match["scheme"], match["rest"]), text)


def shown_address(uri: str) -> str:
    """As :func:`without_secrets`, of a text that is a single address, whose password may have any characters."""
    scheme, _, rest = uri.partition("://")
    return uri if not rest or re.fullmatch(_FILE, scheme) else _shown(scheme, rest)


def keep_secrets(uri: str) -> str:
    """As :func:`shown_address`; the whole address is kept in memory for :func:`with_secrets`."""
    shown = shown_address(uri)
    if shown != uri:
        _whole[shown] = uri
    return shown


def with_secrets(shown: str) -> str | None:
    """The whole address; ``None``: its secrets are not known to this process."""
    return _whole.get(shown, None if HIDDEN in shown else shown)


def hide_secrets(text: str) -> str:
    """As :func:`without_secrets`; the secrets of this process's addresses are also hidden where they stand alone."""
    for shown, whole in _whole.items():
        text = text.replace(whole, shown)
        start, end = _differing(shown, whole)
        for secret in {whole[start:end], unquote(whole[start:end])}:
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, HIDDEN)
    return without_secrets(text)


def tracking_address(uri: str) -> str:
    """A tracking URI for MLflow, with ``***`` in place of a password, which is kept in memory.

    Raises:
        ValueError: it is not a tracking URI.
    """
    shown = keep_secrets(uri)  # first, so that the error message of a wrong one has no secret
    schemes = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
    if uri.partition(":")[0].partition("+")[0] not in schemes or not uri.isprintable():
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
    # Up to the last @, since an unquoted password may contain one.
    name, at, after = rest.rpartition("@")
    user, colon, _ = name.partition(":")
    if colon:
        name = f"{user}:{HIDDEN}"
    elif at and scheme.lower().startswith("http"):  # a token stands alone
        name = HIDDEN
    return f"{scheme}://" + _IN_QUERY.sub(rf"\1{HIDDEN}", f"{name}{at}{after}")


def _differing(shown: str, whole: str) -> tuple[int, int]:
    """Start and end of the part of the whole address that the shown one hides."""
    start = next(i for i, (here, there) in enumerate(zip(shown, whole, strict=False)) if here != there)
    tail = 0
    while shown[-1 - tail] == whole[-1 - tail] and tail < len(whole) - start - 1:
        tail += 1
    return start, len(whole) - tail
