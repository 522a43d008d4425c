"""The row: layout by role and kind, views both ways, flat optimiser slices."""

from __future__ import annotations

import torch
from torch import nn

from fedpriv.models.net import norms_with_statistics
from fedpriv.models.registry import build_model
from fedpriv.parameters import ParameterSpace


def net_with_norm() -> nn.Module:
    net = nn.Module()
    net.encoder = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    net.head = nn.Linear(3, 2)
    return net


def test_entries_are_ordered_by_role_then_kind_and_fill_the_row() -> None:
    space = ParameterSpace.of(net_with_norm())
    assert [(e.role, e.kind) for e in space.entries] == [
        ("encoder", "weight"), ("encoder", "bias"), ("encoder", "bias"), ("encoder", "bias"),
        ("encoder", "buffer"), ("encoder", "buffer"), ("head", "weight"), ("head", "bias"),
    ]  # fmt: skip
    assert space.entries[0].start == 0 and space.size == 12 + 3 + 3 + 3 + 3 + 3 + 6 + 2
    assert all(a.stop == b.start for a, b in zip(space.entries, space.entries[1:], strict=False))


def test_integer_counters_are_not_in_the_row() -> None:
    assert "encoder.1.num_batches_tracked" not in ParameterSpace.of(net_with_norm())


def test_pack_and_unpack_are_inverse() -> None:
    net = build_model("lenet5", (1, 28, 28), 10)
    space = ParameterSpace.of(net)
    row = space.row_of(net)
    assert row.numel() == sum(p.numel() for p in net.parameters())
    again = space.pack(space.unpack(row), torch.zeros_like(row))
    assert torch.equal(again, row)
    assert torch.equal(space.view(row, "head.weight"), net.head.weight)


def test_pack_leaves_what_is_not_given_and_ignores_what_is_not_a_parameter() -> None:
    space = ParameterSpace.of(net_with_norm())
    row = torch.zeros(space.size)
    space.pack({"head.bias": torch.ones(2), "statistic.centers": torch.ones(5)}, row)
    assert row.sum() == 2 and torch.equal(space.view(row, "head.bias"), torch.ones(2))


def test_a_bound_net_moves_with_its_row() -> None:
    net = net_with_norm()
    space = ParameterSpace.of(net)
    row, grad = space.row_of(net), torch.zeros(space.size)
    space.bind(net, row, grad)
    row.fill_(0.5)
    assert net.head.bias.tolist() == [0.5, 0.5]
    net.head(net.encoder(torch.randn(8, 4))).sum().backward()
    assert torch.equal(space.view(grad, "head.bias"), torch.full((2,), 8.0))
    assert not torch.equal(space.view(row, "encoder.1.running_mean"), torch.full((3,), 0.5)), "buffers live in the row too"


def test_slices_join_neighbours() -> None:
    space = ParameterSpace.of(net_with_norm())
    assert list(space.slices(["encoder", "head"], "weight")) == [slice(0, 12), slice(27, 33)]
    assert list(space.slices(["encoder"], "bias")) == [slice(12, 21)]
    assert list(space.slices(["projector"], "bias")) == []


def test_select_can_leave_buffers_out() -> None:
    space = ParameterSpace.of(net_with_norm())
    assert "encoder.1.running_var" in space.select(["encoder"])
    assert "encoder.1.running_var" not in space.select(["encoder"], buffers=False)


def test_norms_whose_outputs_depend_on_the_clients_data_are_found_by_their_type() -> None:
    """Those that FedBN keeps with a client; InstanceNorm without running statistics takes each sample by itself."""
    kept = [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, track_running_stats=True)]
    others = [nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.LayerNorm(4)]
    assert list(norms_with_statistics(nn.Sequential(*kept, *others))) == ["0", "1", "2"]
