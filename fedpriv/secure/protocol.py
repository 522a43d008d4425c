"""Secure aggregation (Bonawitz et al., CCS 2017, fig. 4, with confirmations for signatures): a round at client and server.

1. Each client sends two public keys (:meth:`Participant.advertise`).
2. It receives all keys, and sends each other client encrypted shares of two secrets: the seed of its private mask, and the
   private key of its pairwise masks (:meth:`Participant.share`).
3. It receives the others' shares, and sends its upload with all masks added (:meth:`Participant.masked`). From here on, clients
   may drop out.
4. It receives the lists of clients that sent an upload (active) and that did not (dropped), and confirms them to each other
   active client (:meth:`Participant.confirm`).
5. It receives the others' confirmations. It reveals, for each active client, the share of the private mask, and for each dropped
   one that of the pairwise masks, never both (:meth:`Participant.reveal`). The server then removes the masks that do not cancel
   (:func:`unmasked`).

The server may be curious, or lie about who takes part and who dropped out. A server that swaps public keys is not detected, as
they are not signed; but only clients that received the same public keys can decrypt each other's shares. A client reveals shares
only if a majority confirms its lists, and no client confirms two different ones, so all shares of a round are revealed for the
same lists. Otherwise a server could tell clients different lists, and combine their shares to all masks of a single upload. With
c clients that collude with the server, preventing this would take a threshold above (n + c) / 2.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpriv.noise_source import Words
from fedpriv.secure.fixed_point import Array, encoded
from fedpriv.secure.keys import decrypt, encrypt, new_private_key, public_key, shared_key
from fedpriv.secure.masks import mask
from fedpriv.secure.protocol_checks import FEWEST, MOST
from fedpriv.secure.shares import SHARE, join, split
from fedpriv.wire.message import Refused


@dataclass(frozen=True)
class PublicKeys:
    """A client's public keys: for the encryption of shares to it, and for the pairwise masks."""

    encryption: bytes
    masking: bytes


def threshold(clients: int) -> int:
    """Number of shares that give a secret: a majority."""
    return clients // 2 + 1


def majority(clients: int) -> int:
    """Number of a round's clients that must be in its sum, and reveal shares for it."""
    return max(FEWEST, threshold(clients))


@dataclass
class Participant:
    """A client in one round of one run, with new secrets.

    Attributes:
        number: of the client, from 0.
        label: bytes that identify the run and the round; keys and encrypted shares are valid for one round only.
        sent_to_all: what the server must have sent to all clients alike, such as the model. Shares cannot be decrypted by a
            client that was sent something else.
        min_clients: the fewest clients of a sum (``train.min_uploads``). With fewer the server would keep its model, and the next
            round's sum would be over the same model.
    """

    number: int
    label: bytes
    sent_to_all: bytes = b""
    min_clients: int = 1
    _encryption_key: bytes = field(default_factory=new_private_key, repr=False)
    _masking_key: bytes = field(default_factory=new_private_key, repr=False)
    _private_seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _keys: dict[int, PublicKeys] = field(default_factory=dict, repr=False)
    _shares: dict[int, bytes] = field(default_factory=dict, repr=False)
    _lists: tuple[frozenset[int], frozenset[int]] | None = field(default=None, repr=False)
    _sent: bool = field(default=False, repr=False)

    @property
    def clients(self) -> list[int]:
        """The clients of the round, itself included, ascending."""
        return sorted(self._keys)

    def advertise(self) -> PublicKeys:
        """Its public keys."""
        return PublicKeys(public_key(self._encryption_key), public_key(self._masking_key))

    def share(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Encrypted shares of its two secrets, by the other client that they are for.

        Raises:
            Refused: there are too few or too many clients, two keys are equal, or its own keys are not those that it sent.
        """
        if self._keys:
            raise Refused("the keys of this round were sent before")
        if not FEWEST <= len(keys) <= MOST:
            raise Refused(f"a sum of {len(keys)} clients; {FEWEST} to {MOST} are needed")
        all_keys = [key for pair in keys.values() for key in (pair.encryption, pair.masking)]
        if len(set(all_keys)) < len(all_keys):
            raise Refused("two clients have the same public key")
        if keys.get(self.number) != self.advertise():
            raise Refused(f"the public keys of client {self.number} are not its own")
        self._keys = dict(keys)
        needed = threshold(len(keys))
        seeds, masking = split(self._private_seed, keys, needed), split(self._masking_key, keys, needed)
        self._shares[self.number] = seeds[self.number] + masking[self.number]
        return {
            other: encrypt(self._key_with(other), seeds[other] + masking[other], self._context(self.number, other))
            for other in keys
            if other != self.number
        }

    def masked(self, values: Array, encrypted: Mapping[int, bytes], rounding: bytes) -> Words:
        """As :meth:`masked_words`, of numbers ``(p,)``.

        Args:
            rounding: seed (32 bytes) of the rounding.
        """
        return self.masked_words(encoded(values, rounding), encrypted)

    def masked_words(self, words: Words, encrypted: Mapping[int, bytes]) -> Words:
        """Words ``(p,)`` with all masks added.

        Args:
            encrypted: the shares from other clients, by sender. Clients without have dropped out, and there are no masks with
                them.

        Raises:
            Refused: there are too few senders, or shares that are not from their sender.
        """
        if not self._keys or self._sent:
            raise Refused("an upload that is out of turn; each round has one")
        if not encrypted.keys() <= self._keys.keys() - {self.number}:
            raise Refused("encrypted shares of a client that is not in this round")
        if len(encrypted) + 1 < self._fewest():
            raise Refused(f"{len(encrypted) + 1} clients are left; {self._fewest()} are needed")
        decrypted = {}
        for sender, ciphertext in encrypted.items():
            try:
                decrypted[sender] = decrypt(self._key_with(sender), ciphertext, self._context(sender, self.number))
            except ValueError:
                raise Refused(f"the encrypted shares of client {sender} are not from it, or not for this sum") from None
        self._shares |= decrypted
        self._sent = True
        total = words + mask(self._private_seed, len(words))
        for other in decrypted:
            total += pairwise(self._masking_key, self._keys[other].masking, self.label, self.number, other, len(words))
        return total

    def confirm(self, active: Collection[int], dropped: Collection[int]) -> dict[int, bytes]:
        """Encrypted confirmations of the lists, by the other active client that they are for.

        Raises:
            Refused: the lists overlap, are not of the clients of this round, have too few active ones, or have changed.
        """
        lists = frozenset(active), frozenset(dropped)
        if not self._sent:
            raise Refused("the masks are asked for before the upload")
        if both := lists[0] & lists[1]:
            raise Refused(f"client {min(both)} is said to be both active and dropped, which would unmask it")
        if lists[0] | lists[1] != self._shares.keys():
            raise Refused("the active and dropped clients are not those whose masks are in the sum")
        if self.number not in lists[0]:
            raise Refused(f"client {self.number} is said to be dropped, and is asked")
        if len(lists[0]) < self._fewest():
            raise Refused(f"a sum of {len(lists[0])} clients; {self._fewest()} are needed")
        if self._lists not in (None, lists):
            raise Refused("the lists of active and dropped clients have changed")
        self._lists = lists
        return {
            other: encrypt(self._key_with(other), b"", self._context(self.number, other, lists))
            for other in lists[0]
            if other != self.number
        }

    def reveal(self, confirmed: Mapping[int, bytes]) -> dict[int, bytes]:
        """Shares by client: of an active one that of its private mask, of a dropped one that of its pairwise masks.

        Args:
            confirmed: the confirmations of other active clients (:meth:`confirm`), by sender.

        Raises:
            Refused: too few of them confirm the same lists.
        """
        if self._lists is None:
            raise Refused("the masks are asked for before the lists of active and dropped clients are known")
        active = self._lists[0]
        agree = 1 + sum(self._confirms(sender, text) for sender, text in confirmed.items() if sender in active - {self.number})
        if agree < (needed := majority(len(self._keys))):
            raise Refused(f"{agree} clients confirm the lists of active and dropped ones; {needed} are needed")
        return {client: share[:SHARE] if client in active else share[SHARE:] for client, share in self._shares.items()}

    def _confirms(self, sender: int, text: bytes) -> bool:
        """Whether a confirmation is of the lists that this client confirmed."""
        try:
            return decrypt(self._key_with(sender), text, self._context(sender, self.number, self._lists)) == b""
        except ValueError:
            return False

    def _fewest(self) -> int:
        return max(majority(len(self._keys)), self.min_clients)

    def _context(self, sender: int, receiver: int, lists: tuple[frozenset[int], frozenset[int]] | None = None) -> bytes:
        """What sender and receiver must agree on for a decryption: who they are, all public keys, what the server sent to all
        clients, and the lists that are confirmed."""
        keys = b"".join([*(pair.encryption + pair.masking for _, pair in sorted(self._keys.items())), self.sent_to_all])
        clients = [self.clients, *map(sorted, lists or ())]
        return f"{sender} to {receiver} of {clients} ".encode() + hashlib.sha256(keys).digest()

    def _key_with(self, other: int) -> bytes:
        """The key of encrypted messages between this client and another."""
        return shared_key(self._encryption_key, self._keys[other].encryption, b"fedpriv letter " + self.label)


def pairwise(private: bytes, public: bytes, label: bytes, own: int, other: int, size: int) -> Words:
    """The mask ``(size,)`` that two clients share, as the client ``own`` adds it; the other adds its negative."""
    words = mask(shared_key(private, public, b"fedpriv mask " + label), size)
    return words if own < other else np.negative(words)


def unmasked(
    uploads: Mapping[int, Words], shared: Collection[int], keys: Mapping[int, PublicKeys],
    revealed: Mapping[int, Mapping[int, bytes]], label: bytes,
) -> Words:  # fmt: skip
    """The sum ``(p,)`` of the uploads, computed at the server.

    Args:
        uploads: of the active clients.
        shared: the clients that sent shares of their secrets, active or dropped.
        revealed: the shares that clients revealed (:meth:`Participant.reveal`), by client.

    Raises:
        Refused: too few clients revealed shares, or their shares do not give the secrets.
    """
    needed = majority(len(keys))
    if min(len(uploads), len(revealed)) < needed:
        raise Refused(f"{len(revealed)} of {len(uploads)} clients revealed shares; {needed} are needed")
    size = len(next(iter(uploads.values())))
    total = np.zeros(size, dtype=np.uint64)
    for words in uploads.values():
        total += words
    for client in shared:
        wrong = Refused(f"the shares that clients revealed of client {client}'s secret do not give it; one of them is false")
        try:
            secret = join({owner: shares[client] for owner, shares in revealed.items()})
        except (KeyError, ValueError):
            raise wrong from None
        if client in uploads:
            total -= mask(secret, size)
            continue
        if public_key(secret) != keys[client].masking:
            raise wrong
        for other in uploads:
            total += pairwise(secret, keys[other].masking, label, client, other, size)
    return total
