"""The messages of a secure sum. They go up and down in turn; what goes down is for one client.

=========  ========  ===================================================================================================
kind       way       content
=========  ========  ===================================================================================================
keys       up        the client's public keys, in place of its upload
keys       down      the public keys of all
letters    up, down  encrypted shares: for each other client, and then from each other client
masked     up        the client's upload behind all masks
members    down      who uploaded (active), and who did not (dropped)
confirmed  up, down  that these are the lists that the sender was told: for each other client, and then from each other client
shares     up        a share of a secret of each
=========  ========  ===================================================================================================

All but ``masked`` and ``members`` are tables: numbers of clients ``(n,)``, ascending, and a row of bytes for each ``(n, width)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from fedpriv.noise_source import Words
from fedpriv.secure.keys import ENVELOPE, agreed, new_private
from fedpriv.secure.protocol import PublicKeys
from fedpriv.secure.shares import SHARE
from fedpriv.wire import Expected, Form, Kind, Payload, Refused, Sealed, seal

KEY = 32
WIDTHS: Mapping[Kind, int] = {"keys": 2 * KEY, "letters": 2 * SHARE + ENVELOPE, "confirmed": ENVELOPE, "shares": SHARE}
"""Bytes of a row."""


def table(kind: Kind, round: int, client: int, rows: Mapping[int, bytes]) -> Sealed:
    """A message with a row of bytes for each of some clients.

    Args:
        client: its sender or receiver.
    """
    numbers = sorted(rows)
    together = bytearray(b"".join(rows[number] for number in numbers))
    cells = torch.frombuffer(together, dtype=torch.uint8) if together else torch.empty(0, dtype=torch.uint8)
    tensors = {"clients": torch.tensor(numbers, dtype=torch.int64), "rows": cells.reshape(len(numbers), WIDTHS[kind])}
    return seal(Payload(tensors, round, client, kind))


def rows_of(sealed: Sealed, kind: Kind, round: int, client: int) -> dict[int, bytes]:
    """The rows of a table, by client.

    Raises:
        Refused: here and below, the message is not what is expected.
    """
    forms = {"clients": _NUMBERS, "rows": Form(("n", WIDTHS[kind]), torch.uint8)}
    tensors = Expected(round, client, forms, kind=kind).check(sealed).tensors()
    rows = tensors["rows"].numpy()
    return {number: row.tobytes() for number, row in zip(tensors["clients"].tolist(), rows, strict=True)}


def public(keys: PublicKeys) -> bytes:
    """A row of the kind ``keys``."""
    return keys.letters + keys.masks


def read_public(row: bytes) -> PublicKeys:
    """The inverse of :func:`public`."""
    return PublicKeys(row[:KEY], row[KEY:])


def own_key(sealed: Sealed, round: int, client: int) -> PublicKeys:
    """The keys that a client sends of itself: two that differ, and with which others can agree on a secret.

    Every client would refuse a sum with others.
    """
    rows = rows_of(sealed, "keys", round, client)
    if rows.keys() != {client}:
        raise Refused("it sends other public keys than its own")
    found = read_public(rows[client])
    if found.letters == found.masks:
        raise Refused("its two public keys are the same")
    private = new_private()
    try:
        for key in (found.letters, found.masks):
            agreed(private, key, b"")
    except ValueError:
        raise Refused("one of its public keys is none") from None
    return found


def masked(round: int, client: int, words: Words) -> Sealed:
    """An upload ``(p,)`` behind masks."""
    return seal(Payload({"words": torch.from_numpy(words.view(np.int64))}, round, client, "masked"))


def words_of(sealed: Sealed, round: int, client: int, size: int) -> Words:
    """The inverse of :func:`masked`."""
    forms = {"words": Form((size,), torch.int64)}
    found = Expected(round, client, forms, kind="masked").check(sealed).tensors()["words"]
    return found.numpy().view(np.uint64)


def members(round: int, client: int, active: Collection[int], dropped: Collection[int]) -> Sealed:
    """Who uploaded, and who did not."""
    lists = {name: torch.tensor(sorted(one), dtype=torch.int64) for name, one in (("active", active), ("dropped", dropped))}
    return seal(Payload(lists, round, client, "members"))


def members_of(sealed: Sealed, round: int, client: int) -> tuple[list[int], list[int]]:
    """The inverse of :func:`members`."""
    forms = {"active": _NUMBERS, "dropped": Form(("m",), torch.int64, least=0, rising=True)}
    lists = Expected(round, client, forms, kind="members").check(sealed).tensors()
    return lists["active"].tolist(), lists["dropped"].tolist()


_NUMBERS = Form(("n",), torch.int64, least=0, rising=True)
