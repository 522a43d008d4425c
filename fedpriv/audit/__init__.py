"""The audit of finished runs: the messages to attack, the attacks, and the report.

``run_audit`` audits one run, whose results are those of ``results``, ``report`` compares runs, ``called`` is
``fedpriv.audit(run)``.
The packages: :mod:`fedpriv.audit.record`, the attacker's view of a run; :mod:`fedpriv.audit.images`,
:mod:`fedpriv.audit.text`, :mod:`fedpriv.audit.rows` and :mod:`fedpriv.audit.membership`, the attacks;
:mod:`fedpriv.audit.judge`, what they show; :mod:`fedpriv.audit.page`, the report's page.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that can be called: in Python, ``fedpriv.audit`` is both this package and the function that audits runs."""

    def __call__(self, *runs: Any, **options: Any) -> Any:
        from fedpriv.audit.public import audit

        return audit(*runs, **options)


sys.modules[__name__].__class__ = _Package
