"""Messages between clients and server: payloads, sealed as the bytes that a transport would carry.

A method creates a :class:`Payload`; transforms (defences, compression) change it, in the order of the config; :func:`seal`
serialises it. The server, the byte meter and the attacker get the same :class:`Sealed` object, and nothing else. A tensor that a
transform removed is absent from the bytes, not zero.

Received messages are not trusted: :func:`unseal` refuses bytes that :func:`seal` did not make, and
:class:`~fedpriv.wire.expected.Expected` refuses messages that the sender should not send.
"""

from fedpriv.wire.carrying import ByteMeter, RandomStream, Tap, Transform, TransformContext, transform_and_seal
from fedpriv.wire.expected import Expected, Form
from fedpriv.wire.message import STATISTIC, Direction, Kind, Payload, Refused, statistic, tensor_of
from fedpriv.wire.sealing import Sealed, seal, unseal

__all__ = [
    "STATISTIC",
    "ByteMeter",
    "Direction",
    "Expected",
    "Form",
    "Kind",
    "Payload",
    "RandomStream",
    "Refused",
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
