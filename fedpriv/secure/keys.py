"""Key agreement between two clients through the server: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869); encryption by AES-GCM."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE, _TAG = 12, 16
OVERHEAD = _NONCE + _TAG
"""Bytes by which :func:`encrypt` makes a text longer."""


def new_private_key() -> bytes:
    """A private key: 32 bytes from the operating system."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key (32 bytes) of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 32 bytes for one purpose that only the owners of the two keys know.

    Raises:
        ValueError: the public key is invalid.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)


def encrypt(key: bytes, text: bytes, context: bytes) -> bytes:
    """``text`` encrypted by AES-256-GCM, and authenticated together with ``context``, which is not sent."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, context)


def decrypt(key: bytes, ciphertext: bytes, context: bytes) -> bytes:
    """The inverse of :func:`encrypt`.

    Raises:
        ValueError: the ciphertext is not from the other owner of the key, or was made in another context.
    """
    try:
        return AESGCM(key).decrypt(ciphertext[:_NONCE], ciphertext[_NONCE:], context)
    except (InvalidTag, ValueError):  # the latter: it is too short
        raise ValueError("not from the owner of the key") from None
