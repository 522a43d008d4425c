"""Messages between clients and server: payloads, sealed as the bytes that a transport would carry.

A method creates a :class:`Payload`; transforms (defences, compression) change it, in the order of the config; :func:`seal`
serialises it. The server, the byte meter and the attacker all get the same :class:`Sealed` object and nothing else. A tensor that
a transform removed is absent from the bytes, not zero.
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
