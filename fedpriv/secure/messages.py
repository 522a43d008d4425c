"""The messages of a secure sum, in their order; each message down is for one client.

=========  ========  ===================================================================================================
kind       way       content
=========  ========  ===================================================================================================
keys       up        the client's public keys, in place of its upload
keys       down      the public keys of all
letters    up, down  encrypted shares of secrets: up for each other client, down from each other client
masked     up        the client's masked upload
members    down      the clients that uploaded (active), and those that did not (dropped)
confirmed  up, down  encrypted confirmations of these lists: up for each other client, down from each other client
shares     up        a decrypted share of a secret of each client
=========  ========  ===================================================================================================

All but ``masked`` and ``members`` are tables: client numbers ``(n,)``, ascending, and a row of bytes for each ``(n, width)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from fedpriv.noise_source import Words
from fedpriv.secure.keys import OVERHEAD, new_private_key, shared_key
from fedpriv.secure.protocol import PublicKeys
from fedpriv.secure.shares import SHARE
from fedpriv.wire import Expected, Form, Kind, Payload, Refused, Sealed, seal

KEY = 32
WIDTHS: Mapping[Kind, int] = {"keys": 2 * KEY, "letters": 2 * SHARE + OVERHEAD, "confirmed": OVERHEAD, "shares": SHARE}
"""Bytes of a row."""


def table(kind: Kind, round: int, client: int, rows: Mapping[int, bytes]) -> Sealed:
    """A message with a row of bytes for each of some clients.

    Args:
        client: its sender or receiver.
    """
    numbers = sorted(rows)
    joined = bytearray(b"".join(rows[number] for number in numbers))
    cells = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
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
    return keys.encryption + keys.masking


def read_public(row: bytes) -> PublicKeys:
    """The inverse of :func:`public`."""
    return PublicKeys(row[:KEY], row[KEY:])


def own_key(sealed: Sealed, round: int, client: int) -> PublicKeys:
    """The public keys that a client sends: two valid keys that differ, as the other clients refuse a sum with other keys."""
    rows = rows_of(sealed, "keys", round, client)
    if rows.keys() != {client}:
        raise Refused("it sends other public keys than its own")
    keys = read_public(rows[client])
    if keys.encryption == keys.masking:
        raise Refused("its two public keys are the same")
    private = new_private_key()
    try:
        for key in (keys.encryption, keys.masking):
            shared_key(private, key, b"")
    except ValueError:
        raise Refused("one of its public keys is invalid") from None
    return keys


def masked(round: int, client: int, words: Words) -> Sealed:
    """A masked upload ``(p,)``."""
    return seal(Payload({"words": torch.from_numpy(words.view(np.int64))}, round, client, "masked"))


def words_of(sealed: Sealed, round: int, client: int, size: int) -> Words:
    """The inverse of :func:`masked`."""
    forms = {"words": Form((size,), torch.int64)}
    words = Expected(round, client, forms, kind="masked").check(sealed).tensors()["words"]
    return words.numpy().view(np.uint64)


def members(round: int, client: int, active: Collection[int], dropped: Collection[int]) -> Sealed:
    """The clients that uploaded, and those that did not."""
    lists = {
        name: torch.tensor(sorted(clients), dtype=torch.int64) for name, clients in (("active", active), ("dropped", dropped))
    }
    return seal(Payload(lists, round, client, "members"))


def members_of(sealed: Sealed, round: int, client: int) -> tuple[list[int], list[int]]:
    """The inverse of :func:`members`."""
    forms = {"active": _NUMBERS, "dropped": Form(("m",), torch.int64, least=0, rising=True)}
    lists = Expected(round, client, forms, kind="members").check(sealed).tensors()
    return lists["active"].tolist(), lists["dropped"].tolist()


_NUMBERS = Form(("n",), torch.int64, least=0, rising=True)
