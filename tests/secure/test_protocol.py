"""Secure aggregation without a network: the sum is right, nothing else is to be had, and lists that would unmask are refused."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.stats import chisquare

from fedpriv.noise_source import Words
from fedpriv.secure.fixed_point import CLIP, PLACES, Array, decoded, encoded
from fedpriv.secure.keys import decrypt, encrypt, new_private_key, public_key, shared_key
from fedpriv.secure.masks import mask
from fedpriv.secure.protocol import Participant, pairwise, threshold, unmasked
from fedpriv.secure.protocol_checks import MOST
from fedpriv.secure.shares import join, split
from fedpriv.wire.message import Refused

SIZE = 1000


@dataclass
class Round:
    """A round up to the uploads. Clients may drop out before they share keys (``absent``) or upload (``dropped``)."""

    clients: int
    dropped: Collection[int] = ()
    absent: Collection[int] = ()
    label: bytes = b"run 1"
    members: dict[int, Participant] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    uploads: dict[int, Words] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.clients)
        self.members = {number: Participant(number, self.label) for number in range(self.clients)}
        self.values = {number: draw.normal(0, 0.1, SIZE) for number in self.members}
        self.keys = {number: member.advertise() for number, member in self.members.items()}
        self.shared = [number for number in self.members if number not in self.absent]
        self.encrypted = {number: self.members[number].share(self.keys) for number in self.shared}
        for number in self.shared:
            if number not in self.dropped:
                self.uploads[number] = self.members[number].masked(self.values[number], self.encrypted_for(number), bytes(32))

    def encrypted_for(self, number: int) -> dict[int, bytes]:
        return {sender: self.encrypted[sender][number] for sender in self.shared if sender != number}

    def sum(self) -> Array:
        active = list(self.uploads)
        gone = [number for number in self.shared if number not in self.uploads]
        return decoded(unmasked(self.uploads, self.shared, self.keys, self.revealed(active, gone), self.label))

    def revealed(self, active: Collection[int], dropped: Collection[int]) -> dict[int, dict[int, bytes]]:
        """What active clients that are told the same reveal."""
        confirmed = {number: self.members[number].confirm(active, dropped) for number in active}
        return {to: self.members[to].reveal({of: sent[to] for of, sent in confirmed.items() if of != to}) for to in active}


@pytest.mark.parametrize(
    ("clients", "dropped", "absent"), [(3, (), ()), (4, (2,), ()), (5, (), (0,)), (7, (1, 6), (3,)), (10, (0, 4, 5, 9), ())]
)
def test_the_sum_is_that_of_the_active_clients(clients: int, dropped: tuple[int, ...], absent: tuple[int, ...]) -> None:
    round = Round(clients, dropped, absent)
    plain = sum(round.values[number] for number in round.uploads)
    assert len(round.uploads) == clients - len(dropped) - len(absent)
    assert np.abs(round.sum() - plain).max() <= len(round.uploads) * 2.0**-PLACES


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_clients_are_refused(clients: int) -> None:
    with pytest.raises(Refused, match=f"a sum of {clients} clients; 3 to 1024"):
        Round(clients)


def test_too_many_dropouts_are_refused_by_clients_and_server() -> None:
    round = Round(3, dropped=(2,))
    with pytest.raises(Refused, match="a sum of 2 clients; 3 are needed"):
        round.members[0].confirm([0, 1], [2])
    with pytest.raises(Refused, match="2 of 2 clients revealed shares; 3 are needed"):
        unmasked(round.uploads, round.shared, round.keys, {0: {}, 1: {}}, round.label)
    with pytest.raises(Refused, match="3 clients are left; 4 are needed"):
        Round(6, absent=(0, 1, 2))


def test_a_client_helps_to_open_no_sum_of_fewer_clients_than_the_terms_say() -> None:
    round = Round(5, dropped=(4,))
    for member in round.members.values():
        member.min_clients = 5
    with pytest.raises(Refused, match="a sum of 4 clients; 5 are needed"):
        round.members[0].confirm(range(4), [4])
    for member in round.members.values():
        member.min_clients = 4
    confirmed = {number: round.members[number].confirm(range(4), [4]) for number in range(4)}
    assert round.members[0].reveal({of: confirmed[of][0] for of in (1, 2)}), "a majority of the five is enough to confirm it"


@pytest.mark.parametrize(
    ("active", "dropped", "reason"),
    [
        ([0, 1, 2, 3], [1], "client 1 is said to be both active and dropped"),
        ([0, 1, 2], [], "not those whose masks are in the sum"),
        ([0, 1, 2, 3, 4], [], "not those whose masks are in the sum"),
        ([1, 2, 3], [0], "client 0 is said to be dropped, and is asked"),
    ],
)
def test_lists_that_would_unmask_a_client_are_refused(active: list[int], dropped: list[int], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Round(4).members[0].confirm(active, dropped)


def test_a_second_story_is_refused() -> None:
    """The server may ask again, but not tell other lists: it would get both secrets of a client."""
    member = Round(4).members[0]
    first = member.confirm([0, 1, 2, 3], [])
    assert member.confirm([0, 1, 2, 3], []).keys() == first.keys()
    with pytest.raises(Refused, match="have changed"):
        member.confirm([0, 1, 2], [3])


def test_shares_need_the_same_public_keys() -> None:
    """Else its masks would be shared with two clients alone, whom the server then calls dropped: it would get all of them."""
    members = {number: Participant(number, b"run 1") for number in range(7)}
    keys = {number: member.advertise() for number, member in members.items()}
    few = {number: keys[number] for number in (0, 1, 2)}
    encrypted = {number: member.share(keys if number else few) for number, member in members.items()}
    with pytest.raises(Refused, match="the encrypted shares of client 1 are not from it"):
        members[0].masked(np.zeros(SIZE), {1: encrypted[1][0], 2: encrypted[2][0]}, bytes(32))
    with pytest.raises(Refused, match="the encrypted shares of client 0 are not from it"):
        members[1].masked(np.zeros(SIZE), {number: encrypted[number][1] for number in members if number != 1}, bytes(32))


def test_no_shares_where_clients_are_told_different_lists() -> None:
    """A server that keeps shares from client 0 and tells each client another list would get all masks of its upload."""
    round = Round(5, dropped=(0,))
    round.members[0].masked(round.values[0], {other: round.encrypted[other][0] for other in (1, 2)}, bytes(32))
    lists = {1: ([0, 1, 3, 4], [2]), 2: ([0, 2, 3, 4], [1]), 3: ([0, 3, 4], [1, 2]), 4: ([0, 3, 4], [1, 2]), 0: ([0, 1, 2], [])}
    confirmed = {number: round.members[number].confirm(*members_of) for number, members_of in lists.items()}
    for number, member in round.members.items():
        got = {of: sent[number] for of, sent in confirmed.items() if number in sent}
        agree = 2 if number in (3, 4) else 1
        with pytest.raises(Refused, match=f"{agree} clients confirm the lists of active and dropped ones; 3 are needed"):
            member.reveal(got)


def test_a_confirmation_is_its_senders_alone() -> None:
    round = Round(4)
    confirmed = {number: member.confirm(range(4), ()) for number, member in round.members.items()}
    own = {of: sent[0] for of, sent in confirmed.items() if of}
    assert round.members[0].reveal(own) == round.members[0].reveal({of: own[of] for of in (1, 2)})
    for wrong in ({1: own[1], 2: own[1]}, {1: own[1], 2: confirmed[0][2]}, {1: own[1], 0: own[2]}, {1: own[1], 2: b"short"}):
        with pytest.raises(Refused, match="2 clients confirm"):
            round.members[0].reveal(wrong)


def test_each_step_happens_once_and_in_update() -> None:
    round, fresh = Round(4), Participant(0, b"run 1")
    with pytest.raises(Refused, match="sent before"):
        round.members[0].share(round.keys)
    with pytest.raises(Refused, match="each round has one"):
        round.members[0].masked(round.values[0], round.encrypted_for(0), bytes(32))
    with pytest.raises(Refused, match="out of turn"):
        fresh.masked(round.values[0], {}, bytes(32))
    with pytest.raises(Refused, match="before the upload"):
        fresh.confirm([0, 1, 2], [])
    with pytest.raises(Refused, match="before the lists"):
        round.members[0].reveal({})


def test_keys_that_are_not_right_are_refused() -> None:
    member = Participant(0, b"run 1")
    keys = {0: member.advertise(), **{number: Participant(number, b"run 1").advertise() for number in (1, 2)}}
    with pytest.raises(Refused, match="the same public key"):
        member.share({**keys, 2: keys[1]})
    with pytest.raises(Refused, match="are not its own"):
        member.share({**keys, 0: Participant(0, b"run 1").advertise()})


def test_encrypted_shares_are_from_their_sender() -> None:
    round = Round(4, dropped=(0,))
    encrypted = round.encrypted_for(0)
    for wrong in ({**encrypted, 1: encrypted[2]}, {**encrypted, 1: b"short"}, {**encrypted, 1: encrypted[1][:-1] + b"\0\0"}):
        with pytest.raises(Refused, match="are not from it"):
            round.members[0].masked(round.values[0], wrong, bytes(32))
    with pytest.raises(Refused, match="not in this round"):
        round.members[0].masked(round.values[0], {**encrypted, 9: encrypted[1]}, bytes(32))


def test_wrong_shares_are_named() -> None:
    round = Round(4)
    revealed = round.revealed([0, 1, 2, 3], [])
    revealed[1] = {**revealed[1], 2: bytes(66)}
    with pytest.raises(Refused, match="shares that clients revealed of client 2's secret do not give it"):
        unmasked(round.uploads, round.shared, round.keys, revealed, round.label)


def test_an_upload_looks_like_random_bytes() -> None:
    """And its plain form does not, so the test can tell."""
    round = Round(4)
    masked = np.concatenate([Round(4).uploads[0] for _ in range(5)])
    plain = encoded(round.values[0], bytes(32))

    def p_value(words: Words) -> float:
        return float(chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue)

    assert p_value(masked) > 1e-4
    assert p_value(plain) < 1e-9
    assert np.abs(np.corrcoef(masked[:SIZE].view(np.int64), round.values[0])[0, 1]) < 0.15


def test_one_mask_less_leaves_random_numbers() -> None:
    """Also for a colluding client, which knows its own pairwise mask, and under a wrong key."""
    round = Round(4)
    member, key = round.members[0], round.keys[1].masking
    without_private = round.uploads[0] - mask(member._private_seed, SIZE)
    known = without_private - pairwise(member._masking_key, key, round.label, 0, 1, SIZE)
    wrong = round.uploads[0] - mask(bytes(32), SIZE)
    for shares in (without_private, known, wrong):
        assert np.abs(decoded(shares)).mean() > 1e6
    others = sum((pairwise(member._masking_key, round.keys[n].masking, round.label, 0, n, SIZE) for n in (2, 3)), np.uint64(0))
    assert np.abs(decoded(known - others) - round.values[0]).max() <= 2.0**-PLACES, "all masks known: the upload"


def test_masks_need_the_whole_key_and_differ_by_round() -> None:
    key = bytes(range(32))
    flipped = bytes([*key[:-1], key[-1] ^ 1])
    assert (mask(key, SIZE) != mask(flipped, SIZE)).mean() > 0.99
    assert mask(key, 10).tolist() == mask(key, SIZE)[:10].tolist()
    with pytest.raises(ValueError, match="32 bytes, got 4"):
        mask(b"seed", 3)
    first, second = new_private_key(), new_private_key()
    mask_of_first = pairwise(first, public_key(second), b"round 1", 0, 1, SIZE)
    assert not (mask_of_first + pairwise(second, public_key(first), b"round 1", 1, 0, SIZE)).any(), "they cancel"
    assert (mask_of_first != pairwise(first, public_key(second), b"round 2", 0, 1, SIZE)).mean() > 0.99


def test_rounding_is_without_bias_seeded_and_clipped() -> None:
    values = np.full(20_000, 0.3 * 2.0**-PLACES)
    assert decoded(encoded(values, bytes(32))).mean() * 2.0**PLACES == pytest.approx(0.3, abs=0.02)
    assert encoded(values, bytes(32)).tolist() == encoded(values, bytes(32)).tolist()
    assert encoded(values, bytes(32)).tolist() != encoded(values, b"\1" * 32).tolist()
    largest = encoded(np.array([1e9, -1e9]), bytes(32))
    assert decoded(largest) == pytest.approx([CLIP, -CLIP], rel=1e-12)
    assert decoded(largest * np.uint64(MOST)) == pytest.approx([CLIP * MOST, -CLIP * MOST], rel=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        encoded(np.array([np.nan]), bytes(32))


@pytest.mark.parametrize("clients", [3, 4, 9])
def test_any_majority_of_shares_gives_the_secret_and_no_fewer(clients: int) -> None:
    secret, needed = random.Random(clients).randbytes(32), threshold(clients)
    shares = split(secret, range(clients), needed)
    for seed in range(5):
        some = random.Random(seed).sample(range(clients), needed)
        assert join({owner: shares[owner] for owner in some}) == secret
        with pytest.raises(ValueError, match="not of one secret"):
            join({owner: shares[owner] for owner in some[1:]})
    assert 2 * needed > clients, "no two groups can be told two stories"


def test_encryption_binds_the_context() -> None:
    key = shared_key(new_private_key(), public_key(new_private_key()), b"test")
    assert decrypt(key, encrypt(key, b"text", b"0 to 1"), b"0 to 1") == b"text"
    with pytest.raises(ValueError, match="not from the owner"):
        decrypt(key, encrypt(key, b"text", b"0 to 1"), b"1 to 0")
