"""What crosses the wire: payloads, sealed as the bytes that a transport would carry.

A :class:`Payload` is what a method hands over; transforms (defences, compression) turn it into another one, in the order
of the config; :func:`seal` makes it bytes. The server, the byte meter and the attacker all get the same :class:`Sealed`
object and nothing else. A tensor that a transform removed is absent: not in the bytes, not zero.
"""

from fedpriv.wire.carrying import ByteMeter, Tap, Transform, TransformContext, transform_and_seal
from fedpriv.wire.message import STATISTIC, Direction, Kind, Payload, statistic, tensor_of
from fedpriv.wire.sealing import Sealed, seal, unseal

__all__ = [
    "STATISTIC",
    "ByteMeter",
    "Direction",
    "Kind",
    "Payload",
    "Sealed",
    "Tap",
    "Transform",
    "TransformContext",
    "seal",
    "statistic",
    "tensor_of",
    "transform_and_seal",
    "unseal",
]
