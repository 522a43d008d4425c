"""Rows of a secure sum, and runs that cannot have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.errors import UsageError
from fedpriv.methods.mpfedcon import CENTERS, CLASSES, COUNTS
from fedpriv.secure import messages
from fedpriv.secure.fixed_point import decoded, encoded
from fedpriv.secure.keys import public_key
from fedpriv.secure.layout import Layout, Sums
from fedpriv.secure.protocol import PublicKeys
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Payload, seal
from fedpriv.wire.message import Refused

ON = {"wire.secure_aggregation": True}
UNEVEN = {"data.clients": 3, "data.partition.name": "dirichlet", "data.partition.alpha": 0.3, "data.partition.seed": 3}
UNEVEN |= {"train.participation": 1.0, "train.batch_size": 600, "train.min_batch": 200}


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("simprox", {}, "aggregation simprox is not declared `linear`"),
        ("local", {}, "sends nothing"),
        ("fedavg", {"wire.transforms": [{"name": "prune", "fraction": 0.1}]}, "through prune.* compressed one by one"),
        ("fedavg", {"wire.transforms": [{"name": "quantise", "bits": 4}]}, "through quantise.* compressed one by one"),
        ("fedavg", {"train.participation": 0.2}, "a round of 2 clients; 3 to 1024 are needed"),
        ("fedavg", {"wire.transforms": [{"name": "cast", "dtype": "bfloat16"}]}, "cast saves nothing"),
        ("fedavg", UNEVEN, "in round 1, 1 of 3 clients have a batch that is large enough to train on, and 3 are needed"),
        ("fedavg", {"train.min_uploads": 4}, "a round of 3 clients has no 4 uploads"),
        ("fedavg", {"privacy.level": "client", "privacy.noise": 1.0}, "clips single uploads"),
    ],
)
def test_what_has_no_sum_is_refused(
    simulate: Callable[..., Simulation], method: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        simulate(method, play=False, **ON, **options)


def test_pairs_of_which_a_client_lacks_the_texts_are_refused(simulate: Callable[..., Simulation]) -> None:
    agreement = simulate("fedavg", play=False).federation.agreement
    from dataclasses import replace

    from fedpriv.secure.protocol_checks import check_run

    agreement.declared = replace(agreement.declared, lacks={4: "text"})
    with pytest.raises(UsageError, match="client 4 has no text samples"):
        check_run(agreement, [range(5)], {})


def test_a_row_is_weighted_and_its_sum_is_read_back(simulate: Callable[..., Simulation]) -> None:
    """By hand: two clients, one with a third of the other's samples."""
    agreement = simulate("fedavg", play=False).federation.agreement
    sent = agreement.space.unpack(agreement.initial)
    most = agreement.declared.most_samples
    layout = Layout(agreement, sent)
    doubled = {name: 2 * tensor for name, tensor in sent.items()}
    rows = layout.row(sent, most, 0.5) + layout.row(doubled, most // 3, None)
    assert len(rows) == layout.size
    sums, share = layout.sums(rows), (most // 3) / most
    assert sums.weight == pytest.approx(1 + share) and sums.loss == 0.5
    for name, tensor in sent.items():
        torch.testing.assert_close(sums.tensors[name], tensor.double() * (1 + 2 * share))


def test_an_upload_that_lacks_a_tensor_is_refused(simulate: Callable[..., Simulation]) -> None:
    agreement = simulate("fedavg", play=False).federation.agreement
    sent = agreement.space.unpack(agreement.initial)
    with pytest.raises(Refused, match="every client must send the same"):
        Layout(agreement, sent).row(dict(list(sent.items())[1:]), 1, None)


def test_a_number_that_a_sum_would_cut_off_is_refused(simulate: Callable[..., Simulation]) -> None:
    """Such as a class centre of large entries times the number of samples behind it."""
    agreement = simulate("mpfedcon", play=False, **ON, **{"method.center_weighting": "counts"}).federation.agreement
    draft = agreement.method.download(agreement.method.start(agreement.initial.clone()), 1)
    assert draft is not None
    sent, layout = draft.tensors, Layout(agreement, draft.tensors)

    def upload(count: int) -> dict[str, torch.Tensor]:
        held = torch.tensor([3], dtype=torch.int16), torch.tensor([count], dtype=torch.int32)
        centers = torch.full((1, agreement.method.context.projection_dim), 12.0)
        model = {name: tensor for name, tensor in sent.items() if name in agreement.space}
        return {**model, CENTERS: centers, CLASSES: held[0], COUNTS: held[1]}

    assert float(layout.sums(layout.row(upload(5000), 1, None)).tensors[CENTERS].max()) == 60_000
    with pytest.raises(Refused, match=r"statistic\.centers adds 84000, and numbers of a sum are at most 65536"):
        layout.row(upload(7000), 1, None)


def test_a_loss_that_a_sum_would_cut_off_is_left_out_of_the_mean(simulate: Callable[..., Simulation]) -> None:
    agreement = simulate("fedavg", play=False).federation.agreement
    sent = agreement.space.unpack(agreement.initial)
    layout, most = Layout(agreement, sent), agreement.declared.most_samples

    def summed(*losses: float) -> Sums:
        rows = (encoded(layout.row(sent, most, loss), bytes(32)) for loss in losses)
        return layout.sums(decoded(np.add.reduce(list(rows))))

    assert summed(2, 1, 5e6).loss == pytest.approx(1.5)
    assert summed(2, 1, 5e6).weight == pytest.approx(3), "its upload counts"
    assert summed(5e6).loss is None
    assert summed(6e4, 3e4).loss == pytest.approx(4.5e4)


def test_messages_are_read_as_they_were_written() -> None:
    keys = PublicKeys(bytes(range(32)), bytes(range(1, 33)))
    row = messages.table("keys", 3, 7, {7: messages.public(keys)})
    assert messages.own_key(row, 3, 7) == keys
    letters = {client: bytes([client]) * messages.WIDTHS["letters"] for client in (4, 2, 9)}
    assert messages.rows_of(messages.table("letters", 3, 7, letters), "letters", 3, 7) == letters
    assert messages.rows_of(messages.table("letters", 3, 7, {}), "letters", 3, 7) == {}
    assert messages.members_of(messages.members(3, 7, {5, 1}, ()), 3, 7) == ([1, 5], [])


@pytest.mark.parametrize(
    ("tensors", "kind", "reason"),
    [
        ({"clients": torch.tensor([1, 1]), "rows": torch.zeros(2, 64, dtype=torch.uint8)}, "keys", "clients"),
        ({"clients": torch.tensor([-1, 1]), "rows": torch.zeros(2, 64, dtype=torch.uint8)}, "keys", "clients"),
        ({"clients": torch.tensor([1]), "rows": torch.zeros(2, 64, dtype=torch.uint8)}, "keys", "shape"),
        ({"clients": torch.tensor([1]), "rows": torch.zeros(1, 63, dtype=torch.uint8)}, "keys", "shape"),
        ({"clients": torch.tensor([1]), "rows": torch.zeros(1, 64)}, "keys", "float32"),
        ({"clients": torch.tensor([1])}, "keys", "rows is missing"),
        ({"clients": torch.tensor([8]), "rows": torch.zeros(1, 64, dtype=torch.uint8)}, "keys", "other public keys"),
        ({"clients": torch.tensor([7]), "rows": torch.zeros(1, 64, dtype=torch.uint8)}, "letters", "kind"),
    ],
)
def test_a_message_of_another_form_is_refused(tensors: dict[str, torch.Tensor], kind: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        messages.own_key(seal(Payload(tensors, 3, 7, kind)), 3, 7)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (public_key(bytes(range(32))) * 2, "are the same"),
        (bytes(32) + public_key(bytes(range(32))), "is invalid"),
        (public_key(bytes(range(32))) + bytes(32), "is invalid"),
        (public_key(bytes(range(32))) + (1).to_bytes(32, "little"), "is invalid"),  # a point of small order, as zero is
    ],
    ids=["equal", "no encryption key", "no masking key", "small order"],
)
def test_keys_with_which_every_client_would_refuse_the_sum_are_refused(row: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        messages.own_key(messages.table("keys", 3, 7, {7: row}), 3, 7)
