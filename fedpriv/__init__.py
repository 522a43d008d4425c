"""Federated learning whose accuracy, cost and privacy leakage are measured on the same run.

``fedpriv.train(method="mpfedcon", dataset="digits")`` returns a run; docs/python.md shows the rest. Names are imported when they
are used, so that ``import fedpriv`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.api.callbacks import Callback, LiveRun
    from fedpriv.api.comparison.comparing import compare, gains
    from fedpriv.api.comparison.groups import groups
    from fedpriv.api.run import Run, load
    from fedpriv.api.sweeping import sweep
    from fedpriv.api.training import resume, rounds, train
    from fedpriv.api.updates import audit_update
    from fedpriv.audit.public import Report, audit
    from fedpriv.config import RunConfig
    from fedpriv.errors import FedprivError, UsageError
    from fedpriv.recorder.start import recording
    from fedpriv.wire import Payload

__all__ = [
    "Callback",
    "FedprivError",
    "LiveRun",
    "Payload",
    "Report",
    "Run",
    "RunConfig",
    "UsageError",
    "audit",
    "audit_update",
    "compare",
    "gains",
    "groups",
    "load",
    "recording",
    "resume",
    "rounds",
    "sweep",
    "train",
]

_WHERE = {
    "Callback": "fedpriv.api.callbacks",
    "FedprivError": "fedpriv.errors",
    "LiveRun": "fedpriv.api.callbacks",
    "Payload": "fedpriv.wire",
    "Report": "fedpriv.audit.public",
    "Run": "fedpriv.api.run",
    "RunConfig": "fedpriv.config",
    "UsageError": "fedpriv.errors",
    "audit": "fedpriv.audit",
    "audit_update": "fedpriv.api.updates",
    "compare": "fedpriv.api.comparison.comparing",
    "gains": "fedpriv.api.comparison.comparing",
    "groups": "fedpriv.api.comparison.groups",
    "load": "fedpriv.api.run",
    "recording": "fedpriv.recorder.start",
    "resume": "fedpriv.api.training",
    "rounds": "fedpriv.api.training",
    "sweep": "fedpriv.api.sweeping",
    "train": "fedpriv.api.training",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_WHERE[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)  # the package audit is callable
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
