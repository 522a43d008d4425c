"""Rounds of real methods whose uploads reach the server behind masks end where plain rounds do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedpriv.deploy.secure.layout import Layout
from fedpriv.deploy.secure.protocol import Participant, unmasked
from fedpriv.errors import UsageError
from fedpriv.methods.base import Method, ServerState
from fedpriv.server import rounds
from fedpriv.server.merging import merge, merge_sum
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload
from fedpriv.wire.message import Refused
from tests.marks import slow_but

LABEL = b"a run, a round"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("mpfedcon", {}),
    ("fednova", {}),
    ("fedavg", {"wire.transforms": [{"name": "mask", "last": 1}]}),
    ("scaffold", {}),
    ("feddyn", {}),
    ("fedbn", {"model.name": "resnet9_narrow", "data.limit": 100}),
]


def behind_masks(layout: Layout, uploads: Sequence[Upload]) -> tuple[dict[str, Any], float]:
    """The whole protocol, with one client that drops out before it uploads; its number is the last."""
    members = {number: Participant(number, LABEL) for number in range(len(uploads) + 1)}
    gone = [len(uploads)]
    keys = {number: one.advertise() for number, one in members.items()}
    letters = {number: one.share(keys) for number, one in members.items()}
    masked = {}
    for number, upload in enumerate(uploads):
        received = {other: sent[number] for other, sent in letters.items() if other != number}
        row = layout.row(upload.tensors(), upload.sealed.num_examples or 0)
        assert len(row) == layout.size
        masked[number] = members[number].masked(row, received, bytes(31) + bytes([number]))
    revealed = {number: members[number].reveal(list(masked), gone) for number in masked}
    return layout.sums(unmasked(masked, list(members), keys, revealed, LABEL))


@pytest.mark.parametrize(("method", "options"), slow_but(["mpfedcon", "fednova"], CASES), ids=[name for name, _ in CASES])
def test_a_round_behind_masks_ends_where_a_plain_one_does(
    monkeypatch: pytest.MonkeyPatch, simulate: Callable[..., Simulation], method: str, options: dict[str, Any]
) -> None:
    settings = {"train.rounds": 2, "data.clients": 5, "train.participation": 0.8, "data.limit": 300, **options}
    simulation, errors = simulate(method, play=False, **settings), list[float]()

    def both(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        plain, sent = merge(method, server, uploads), method.download(server, simulation.progress.round + 1)
        assert sent is not None
        sums, weight = behind_masks(Layout(simulation.federation.agreement, sent.tensors), uploads)
        summed = merge_sum(method, server, sums, sent.tensors, weight, len(uploads), uploads[0].sealed.round)
        errors.append(float((summed.row - plain.row).double().norm() / plain.row.double().norm()))
        return plain

    monkeypatch.setattr(rounds, "merge", both)
    for _ in simulation.rounds():
        pass
    assert len(errors) == 2 and max(errors) < 1e-6


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("simprox", {}, "looks at single uploads"),
        ("fedavg", {"wire.transforms": [{"name": "prune", "fraction": 0.1}]}, "through prune.* compressed one by one"),
        ("fedavg", {"wire.transforms": [{"name": "quantise", "bits": 4}]}, "through quantise.* compressed one by one"),
    ],
)
def test_what_has_no_sum_is_refused(
    simulate: Callable[..., Simulation], method: str, options: dict[str, Any], reason: str
) -> None:
    agreement = simulate(method, play=False, **options).federation.agreement
    with pytest.raises(UsageError, match=reason):
        Layout(agreement, agreement.space.unpack(agreement.initial))


def test_an_upload_that_lacks_a_tensor_is_refused(simulate: Callable[..., Simulation]) -> None:
    agreement = simulate("fedavg", play=False).federation.agreement
    sent = agreement.space.unpack(agreement.initial)
    layout = Layout(agreement, sent)
    assert len(layout.row(sent, 1)) == layout.size
    with pytest.raises(Refused, match="every client must send the same"):
        layout.row(dict(list(sent.items())[1:]), 1)
