"""Flower apps, recorded for an audit and protected: :func:`record` and :func:`protect` are mods of a ``ClientApp``,
:class:`RecordedStrategy` and :class:`RequireClip` wrap a server's strategy."""

from fedpriv.flower.protection import RequireClip, protect
from fedpriv.flower.recorder import RecordedStrategy, record

__all__ = ["RecordedStrategy", "RequireClip", "protect", "record"]
