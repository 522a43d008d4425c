"""TLS connections to a deployment's server: a limit on the time of a response, and errors for a server that is not trusted."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

from fedpriv.errors import UsageError, causes

ANSWER = 30.0
"""Seconds for a whole response. A socket's own timeout is for each read, so a response byte by byte could take for ever."""
_TEMPORARY = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of a handshake whose server has ended."""


def trusting(authority: Path) -> ssl.SSLContext:
    """An SSL context that trusts an authority, for one request that starts now.

    Raises:
        UsageError: the file holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        raise UsageError(f"{authority} holds no certificate that can be read: {why}") from None
    until = time.monotonic() + ANSWER

    class TimedSocket(ssl.SSLSocket):
        def read(self, len: int = 1024, buffer: Any = None) -> bytes:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError(f"its answer takes more than {ANSWER:g} s")
            self.settimeout(left)
            return super().read(len, buffer)

    context.sslsocket_class = TimedSocket
    return context


def wrong_server(address: str, error: BaseException) -> UsageError | None:
    """The error to show if the cause of a failed request is a server that is not trusted; ``None`` for other causes."""
    for cause in causes(error):  # httpcore sets only the context
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UsageError(f"the certificate of {address} does not hold: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TEMPORARY):
            return UsageError(f"what answers on {address} does not speak TLS as a server of fedpriv does: {cause.reason}")
    return None
