"""The audit of finished runs: the messages to attack, the attacks, and the report.

``run_audit`` audits one run, ``verdict`` draws the conclusions, ``report`` compares runs. The packages:
:mod:`fedpriv.audit.evidence`, the attacker's view of a run; :mod:`fedpriv.audit.images`, :mod:`fedpriv.audit.text` and
:mod:`fedpriv.audit.membership`, the attacks; :mod:`fedpriv.audit.page`, the report's page.
"""
