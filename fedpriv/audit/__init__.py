"""The audit of finished runs: the messages to attack, the attacks, and the report.

``run_audit`` asks everything of one run, ``verdict`` says what follows, ``report`` holds runs against each other. The rooms:
:mod:`fedpriv.audit.evidence`, what an attacker gets of a run; :mod:`fedpriv.audit.images`, :mod:`fedpriv.audit.text` and
:mod:`fedpriv.audit.membership`, what is found in it; :mod:`fedpriv.audit.page`, how people see it.
"""
