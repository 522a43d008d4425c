"""Keys that two clients agree on over a server that sees their public halves: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869)."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE, _TAG = 12, 16
ENVELOPE = _NONCE + _TAG
"""Bytes by which :func:`closed` makes a text longer."""


def new_private() -> bytes:
    """32 bytes from the operating system."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public half (32 bytes)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 32 bytes that only the two owners know, for one purpose.

    Raises:
        ValueError: the public key is none.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)


def closed(key: bytes, text: bytes, about: bytes) -> bytes:
    """``text`` encrypted and authenticated by AES-256-GCM, together with ``about``, which is not sent."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, about)


def opened(key: bytes, letter: bytes, about: bytes) -> bytes:
    """The inverse of :func:`closed`.

    Raises:
        ValueError: the letter is not from the other owner of the key, or about something else.
    """
    try:
        return AESGCM(key).decrypt(letter[:_NONCE], letter[_NONCE:], about)
    except (InvalidTag, ValueError):  # the latter: it is too short
        raise ValueError("a letter that is not from its sender") from None
