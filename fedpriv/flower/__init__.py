"""Flower apps, recorded for an audit and protected: :func:`record` and :func:`protect` are mods of a ``ClientApp``,
:class:`RecordedStrategy` wraps a server's strategy."""

from fedpriv.flower.protection import protect
from fedpriv.flower.recorder import RecordedStrategy, record

__all__ = ["RecordedStrategy", "protect", "record"]
