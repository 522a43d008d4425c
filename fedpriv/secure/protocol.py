"""Secure aggregation (Bonawitz et al., CCS 2017, fig. 4, with confirmations for signatures): one round, at both ends.

1. Each client sends two public keys (:meth:`Participant.advertise`).
2. It gets all keys, and sends each other client shares of two secrets: of its private mask, and of its pairwise ones.
3. It gets the shares of the others, and sends its upload behind all masks. From here on, some clients may drop out.
4. It is told who sent an upload (active) and who did not (dropped), and confirms these lists to each active client
   (:meth:`Participant.confirm`).
5. It gets the confirmations of the others. For each active client it sends the share of the private mask, for each dropped one
   that of the pairwise masks, never both. The server then removes what does not cancel.

The server is honest but curious, or lies about who takes part and who dropped out. One that swaps public keys is not kept out:
they are not signed. Only clients that know the same public keys of all can read each other's letters. Shares leave a client only
if a majority was told the same lists, and no client confirms two, so all shares of a round are sent under the same lists. To a
server that tells clients different ones, they would together give all masks of a single upload. With c clients that collude with
it, that would take a threshold above (n + c) / 2.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpriv.noise_source import Words
from fedpriv.secure.fixed_point import Array, decoded, encoded
from fedpriv.secure.keys import agreed, closed, new_private, opened, public_of
from fedpriv.secure.masks import mask
from fedpriv.secure.protocol_checks import FEWEST, MOST
from fedpriv.secure.shares import SHARE, join, split
from fedpriv.wire.message import Refused


@dataclass(frozen=True)
class PublicKeys:
    """Of a client: for letters to it, and for the pairwise masks."""

    letters: bytes
    masks: bytes


def threshold(clients: int) -> int:
    """How many shares give a secret: a majority."""
    return clients // 2 + 1


def majority(clients: int) -> int:
    """How many of a round's clients must have a part in its sum, and help to open it."""
    return max(FEWEST, threshold(clients))


@dataclass
class Participant:
    """A client in one round of one run. Its secrets are new in every round.

    Attributes:
        number: of the client, from 0.
        label: names run and round; keys and letters of another are worth nothing.
        told: what the server must have sent all alike: terms and model. Letters of one that was sent others do not open.
        least: the least number of clients of a sum, by the terms of the run (``train.min_uploads``): of fewer nothing would come,
            the model would stand still, and the next round's sum would be over the same one.
    """

    number: int
    label: bytes
    told: bytes = b""
    least: int = 1
    _letters: bytes = field(default_factory=new_private, repr=False)
    _masks: bytes = field(default_factory=new_private, repr=False)
    _own: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _keys: dict[int, PublicKeys] = field(default_factory=dict, repr=False)
    _kept: dict[int, bytes] = field(default_factory=dict, repr=False)
    _said: tuple[frozenset[int], frozenset[int]] | None = field(default=None, repr=False)
    _sent: bool = field(default=False, repr=False)

    @property
    def clients(self) -> list[int]:
        """Those whose keys it knows, ascending; it is one of them."""
        return sorted(self._keys)

    def advertise(self) -> PublicKeys:
        """Its public keys."""
        return PublicKeys(public_of(self._letters), public_of(self._masks))

    def share(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """A letter to each other client, with a share of each of its two secrets.

        Raises:
            Refused: too few clients or too many, keys that are not all different, or keys of its own that are not.
        """
        if self._keys:
            raise Refused("the keys of this round were sent before")
        if not FEWEST <= len(keys) <= MOST:
            raise Refused(f"a sum of {len(keys)} clients; {FEWEST} to {MOST} are needed")
        every = [key for one in keys.values() for key in (one.letters, one.masks)]
        if len(set(every)) < len(every):
            raise Refused("two clients have the same public key")
        if keys.get(self.number) != self.advertise():
            raise Refused(f"the public keys of client {self.number} are not its own")
        self._keys = dict(keys)
        needed = threshold(len(keys))
        own, masks = split(self._own, keys, needed), split(self._masks, keys, needed)
        self._kept[self.number] = own[self.number] + masks[self.number]
        return {
            other: closed(self._letter_key(other), own[other] + masks[other], self._about(self.number, other))
            for other in keys
            if other != self.number
        }

    def masked(self, values: Array, letters: Mapping[int, bytes], rounding: bytes) -> Words:
        """``(p,)`` numbers behind all masks.

        Args:
            letters: by sender. Those of whom there is none have dropped out, and have no part in the masks.
            rounding: seed (32 bytes) of the rounding.

        Raises:
            Refused: too few letters, or one that is not from its sender.
        """
        if not self._keys or self._sent:
            raise Refused("an upload that is out of turn; each round has one")
        if not letters.keys() <= self._keys.keys() - {self.number}:
            raise Refused("a letter of a client that is not in this round")
        if len(letters) + 1 < self._fewest():
            raise Refused(f"{len(letters) + 1} clients are left; {self._fewest()} are needed")
        read = {}
        for who, text in letters.items():
            try:
                read[who] = opened(self._letter_key(who), text, self._about(who, self.number))
            except ValueError as reason:
                raise Refused(f"the letter of client {who}: {reason}") from None
        self._kept |= read
        self._sent = True
        total = encoded(values, rounding) + mask(self._own, len(values))
        for other in read:
            total += pairwise(self._masks, self._keys[other].masks, self.label, self.number, other, len(values))
        return total

    def confirm(self, active: Collection[int], dropped: Collection[int]) -> dict[int, bytes]:
        """To each other active client, that these are the lists that this one was told.

        Raises:
            Refused: the lists overlap, are not of the clients of this round, leave too few, or differ from those before.
        """
        lists = frozenset(active), frozenset(dropped)
        if not self._sent:
            raise Refused("the masks are asked for before the upload")
        if both := lists[0] & lists[1]:
            raise Refused(f"client {min(both)} is said to be both active and dropped, which would unmask it")
        if lists[0] | lists[1] != self._kept.keys():
            raise Refused("the active and dropped clients are not those whose masks are in the sum")
        if self.number not in lists[0]:
            raise Refused(f"client {self.number} is said to be dropped, and is asked")
        if len(lists[0]) < self._fewest():
            raise Refused(f"a sum of {len(lists[0])} clients; {self._fewest()} are needed")
        if self._said not in (None, lists):
            raise Refused("the lists of active and dropped clients have changed")
        self._said = lists
        return {
            other: closed(self._letter_key(other), b"", self._about(self.number, other, lists))
            for other in lists[0]
            if other != self.number
        }

    def reveal(self, confirmed: Mapping[int, bytes]) -> dict[int, bytes]:
        """For each active client its share of the private mask's secret, for each dropped one of the pairwise masks'.

        Args:
            confirmed: what other active clients wrote to this one (:meth:`confirm`), by sender.

        Raises:
            Refused: too few of them were told the same lists.
        """
        if self._said is None:
            raise Refused("the masks are asked for before the lists of active and dropped clients are known")
        active = self._said[0]
        agree = 1 + sum(self._confirms(who, text) for who, text in confirmed.items() if who in active - {self.number})
        if agree < (needed := majority(len(self._keys))):
            raise Refused(f"{agree} clients confirm the lists of active and dropped ones; {needed} are needed")
        return {who: self._kept[who][:SHARE] if who in active else self._kept[who][SHARE:] for who in self._kept}

    def _confirms(self, sender: int, text: bytes) -> bool:
        """Whether an active client was told the lists that this one was told."""
        try:
            return opened(self._letter_key(sender), text, self._about(sender, self.number, self._said)) == b""
        except ValueError:
            return False

    def _fewest(self) -> int:
        return max(majority(len(self._keys)), self.least)

    def _about(self, sender: int, receiver: int, lists: tuple[frozenset[int], frozenset[int]] | None = None) -> bytes:
        """What a letter stands and falls with: whose it is, all public keys of the round, what all were told, and the lists that
        it confirms."""
        keys = b"".join([*(one.letters + one.masks for _, one in sorted(self._keys.items())), self.told])
        told = [self.clients, *map(sorted, lists or ())]
        return f"{sender} to {receiver} of {told} ".encode() + hashlib.sha256(keys).digest()

    def _letter_key(self, other: int) -> bytes:
        return agreed(self._letters, self._keys[other].letters, b"fedpriv letter " + self.label)


def pairwise(private: bytes, public: bytes, label: bytes, own: int, other: int, size: int) -> Words:
    """The mask that two clients share, as the client ``own`` adds it: the other adds its negative."""
    found = mask(agreed(private, public, b"fedpriv mask " + label), size)
    return found if own < other else np.negative(found)


def unmasked(
    uploads: Mapping[int, Words],
    shared: Collection[int],
    keys: Mapping[int, PublicKeys],
    revealed: Mapping[int, Mapping[int, bytes]],
    label: bytes,
) -> Array:
    """At the server, the sum ``(p,)`` of the uploads.

    Args:
        uploads: of the active clients.
        shared: the clients whose letters were carried, active or dropped.
        revealed: what clients answered (:meth:`Participant.reveal`), by client.

    Raises:
        Refused: too few clients answered, or their shares do not give the secrets.
    """
    needed = majority(len(keys))
    if min(len(uploads), len(revealed)) < needed:
        raise Refused(f"{len(revealed)} of {len(uploads)} clients revealed shares; {needed} are needed")
    size = len(next(iter(uploads.values())))
    total = np.zeros(size, dtype=np.uint64)
    for words in uploads.values():
        total += words
    for who in shared:
        try:
            secret = join({by: shares[who] for by, shares in revealed.items()})
        except (KeyError, ValueError):
            raise Refused(
                f"the shares that clients revealed of client {who}'s secret do not give it; one of them is false"
            ) from None
        if who in uploads:
            total -= mask(secret, size)
            continue
        if public_of(secret) != keys[who].masks:
            raise Refused(f"the shares that clients revealed of client {who}'s secret do not give it; one of them is false")
        for other in uploads:
            total += pairwise(secret, keys[other].masks, label, who, other, size)
    return decoded(total)
