"""TLS to a server of a deployment: one question, whose answer has to come within a time, and what is said of a wrong server."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

from fedpriv.errors import UsageError

ANSWER = 30.0
"""Seconds in which all of an answer must have come: a socket's own timeout holds for each read alone, and an answer that comes
byte by byte would take for ever."""
_PASSES = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""As where a server ends in the middle of a handshake."""


def trusting(authority: Path) -> ssl.SSLContext:
    """TLS that takes servers of an authority, for a question that is asked now.

    Raises:
        UsageError: the authority's file holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        raise UsageError(f"{authority} holds no certificate that can be read: {why}") from None
    until = time.monotonic() + ANSWER

    class Within(ssl.SSLSocket):
        def read(self, len: int = 1024, buffer: Any = None) -> bytes:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError(f"its answer takes more than {ANSWER:g} s")
            self.settimeout(left)
            return super().read(len, buffer)

    context.sslsocket_class = Within
    return context


def wrong_server(address: str, error: BaseException) -> UsageError | None:
    """What to say where an error, or what caused it, is that a server is none to trust; ``None``: it is something else."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UsageError(f"the certificate of {address} does not hold: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _PASSES):
            return UsageError(f"what answers on {address} does not speak TLS as a server of fedpriv does: {cause.reason}")
        cause = cause.__cause__ or cause.__context__  # the latter in httpcore
    return None
