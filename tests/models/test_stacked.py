"""What has a stacked form computes, for each client, what its own net does; what has none is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, weight_norm

from fedpriv.models.batched.layers import FORMS, ForwardContext, Layer, Leaf, NotStackable, to_stack
from fedpriv.models.batched.stacked import Form, StackedNet, VmappedNet, check
from fedpriv.models.net import ROLES, Net
from fedpriv.parameters import ParameterSpace


def with_encoder(*layers: nn.Module, d: int = 16) -> Net:
    """A net on images of 1x8x8."""
    encoder = nn.Sequential(*layers)
    return Net(encoder, nn.Identity(), None, nn.Linear(d, 4), input_shape=(1, 8, 8), feature_dim=d, projection_dim=d, classes=4)


def tied() -> Net:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    return with_encoder(nn.Flatten(), nn.Linear(64, 16), first, nn.ReLU(), second)


def hooked(hook: Callable[[nn.Linear], object]) -> Net:
    layer = nn.Linear(64, 16)
    hook(layer)
    return with_encoder(nn.Flatten(), layer)


def normed() -> Net:
    """Its layer's weight is made from two others before each pass, and then looks like a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        net = hooked(weight_norm)
    with torch.no_grad():
        net(torch.rand(2, 1, 8, 8))
    return net


class FixedInside(nn.Sequential):
    def train(self, mode: bool = True) -> FixedInside:
        super().train(mode)
        self[0].eval()
        return self


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (tied, "encoder.4: its weight is that of another layer too"),
        (normed, "encoder.1: a hook, as of weight_norm or pruning"),
        (lambda: hooked(lambda layer: prune.random_unstructured(layer, "weight", 0.5)), "encoder.1: a hook"),
        (lambda: hooked(lambda layer: layer.register_forward_hook(lambda module, given, out: out.tanh())), "encoder.1: a hook"),
        (lambda: hooked(lambda layer: layer.register_full_backward_hook(lambda module, *_: None)), "encoder.1: a hook"),
        (lambda: with_encoder(FixedInside(nn.BatchNorm2d(1)), nn.Flatten(), d=64), r"encoder.0: its own train\(\) method"),
    ],
)
def test_what_its_layers_do_not_tell(build: Callable[[], Net], why: str) -> None:
    with pytest.raises(NotStackable, match=why):
        StackedNet(build())


def test_zeros_at_the_start_hide_nothing() -> None:
    """The outputs of a new net may be the same whatever a layer computes."""
    net = with_encoder(nn.Flatten(), nn.Linear(64, 16))
    encoder, head = net.encoder, net.head
    assert isinstance(encoder, nn.Sequential) and isinstance(head, nn.Linear)
    nn.init.zeros_(head.weight)
    encoder.forward = lambda x: 2 * nn.Sequential.forward(encoder, x)  # type: ignore[method-assign]
    with pytest.raises(NotStackable, match="differs from its own"):
        StackedNet(net)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten(), nn.Linear(64, 16), nn.GroupNorm(4, 16)],
        [nn.LayerNorm([1, 8, 8]), nn.Flatten(), nn.Linear(64, 16)],
        [nn.Linear(8, 2), nn.Flatten()],
    ],
    ids=["GroupNorm on vectors", "LayerNorm on images", "Linear before Flatten"],
)
def test_layers_on_inputs_that_only_a_single_net_takes(layers: list[nn.Module]) -> None:
    net = with_encoder(*layers)
    assert net(torch.rand(3, 1, 8, 8)).logits.shape == (3, 4)
    with pytest.raises(NotStackable, match="the net as a whole: "):
        StackedNet(net)


def test_vmap_leaves_the_net_in_its_mode() -> None:
    """Or who has the net, and has set its mode, would test clients in training mode."""
    net = with_encoder(nn.Flatten(), nn.BatchNorm1d(64), d=64).eval()
    tensors = {name: tensor.expand(2, *tensor.shape).clone() for name, tensor in net.state_dict().items()}
    VmappedNet(net).encode(ForwardContext(2, tensors, frozenset(ROLES), lambda like, share: like), torch.rand(3, 2, 8, 8))
    assert not any(module.training for module in net.modules()) and not net.encoder[1].num_batches_tracked  # type: ignore[index]
    assert (tensors["encoder.1.running_mean"] > 0).all()


class Passing(nn.Module):
    """Counts its passes, and keeps its last input."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.last = 0, torch.zeros(1)
        self.fc = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.last = x
        y: Tensor = self.fc(x.flatten(1)).tanh()
        return y


class ByMethods(nn.Module):
    """Calls methods of tensors that are functions of torch, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(72, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.conv(x).relu().flatten(1))
        return y


def test_methods_of_tensors_have_the_forms_of_functions() -> None:
    StackedNet(with_encoder(ByMethods()))  # which checks its outputs


def test_tracing_leaves_nothing_in_the_net() -> None:
    layer = Passing()
    with pytest.raises(NotStackable):
        StackedNet(with_encoder(layer))
    assert layer.passes == 0 and type(layer.last) is Tensor


class Centred(nn.Module):
    """Of batch normalisation only its mean, by hand; ``gate``: hidden by a zero at first."""

    def __init__(self, gate: bool = False) -> None:
        super().__init__()
        self.fc, self.share = nn.Linear(64, 16), nn.Parameter(torch.zeros(()) if gate else torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc(x.flatten(1))
        return h - self.share * h.mean(0)


class ByFunction(Centred):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(self.fc(x.flatten(1)), None, None, training=True)


class AcrossTheBatch(nn.Module):
    """``batch_first`` was forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attends(x[:, 0]).flatten(1)
        return y


@pytest.mark.parametrize(
    ("layers", "d", "mixes"),
    [
        ([Centred()], 16, True),
        ([Centred(gate=True)], 16, True),
        ([ByFunction()], 16, True),
        ([AcrossTheBatch()], 64, True),
        ([nn.BatchNorm2d(1), nn.Flatten()], 64, True),
        ([nn.InstanceNorm2d(1, affine=True), nn.Flatten()], 64, False),
        ([nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.Tanh()], 16, False),
    ],
)
def test_nets_whose_samples_meet_are_known(layers: list[nn.Module], d: int, mixes: bool) -> None:
    """Their batches must not be padded."""
    net = with_encoder(*layers, d=d)
    before = [tensor.clone() for tensor in net.state_dict().values()]
    assert VmappedNet(net).mixes == frozenset(ROLES if mixes else ())
    assert all(map(torch.equal, net.state_dict().values(), before))


class CentredInTests(Centred):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) if self.training else super().forward(x)


@pytest.mark.parametrize(
    ("form", "layers", "d"),
    [
        (StackedNet, [nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)], 64),
        (VmappedNet, [Centred()], 16),
        (VmappedNet, [ByFunction()], 16),
        (VmappedNet, [CentredInTests()], 16),
    ],
)
def test_nets_whose_samples_meet_in_evaluation_are_not_stacked(form: type[Form], layers: list[nn.Module], d: int) -> None:
    """What they compute would depend on how a client's samples are cut into batches, and a group cuts them otherwise."""
    net = with_encoder(*layers, d=d)
    with pytest.raises(NotStackable, match="in evaluation mode, samples of a batch change each other's outputs"):
        check(form(net), net)


def test_dropout_of_everything_leaves_zeros() -> None:
    x = torch.ones(2, 3, 4)
    ctx = ForwardContext(2, {}, frozenset({"encoder"}), lambda like, share: torch.zeros(2, *like.shape))
    assert torch.equal(FORMS[nn.Dropout](Layer("encoder.drop", nn.Dropout(1.0)), ctx, x), torch.zeros_like(x))


class Twice(nn.Module):
    """It passes one of its layers twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(64, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        y: Tensor = self.inner(self.inner(x).relu())
        return y


@pytest.mark.parametrize("views", [1, 2])
def test_layers_write_the_sum_of_their_gradients_where_it_belongs(views: int) -> None:
    """In a larger matrix that holds other numbers before; autograd gives the expected ones."""
    net = with_encoder(Twice()).double()
    stacked: Form = StackedNet(net)
    space = ParameterSpace.of(net)
    rows = space.row_of(net) + torch.rand(2, space.size, generator=torch.Generator().manual_seed(0)).double()
    images = [to_stack(list(torch.rand(2, 3, 1, 8, 8).double()), 3) for _ in range(views)]
    gradients = torch.full_like(rows, torch.nan)
    leaves = dict[str, Leaf]()
    for entry in space.entries:
        span, shape = slice(entry.start, entry.stop), (2, *entry.shape)
        leaves[entry.name] = Leaf(rows[:, span].view(shape).data.requires_grad_(True), gradients[:, span].view(shape))
    parameters = [leaf.tensor for leaf in leaves.values()]

    def differentiated(given: dict[str, Leaf]) -> tuple[Tensor | None, ...]:
        tensors = {name: leaf.tensor for name, leaf in leaves.items()}
        ctx = ForwardContext(2, tensors, frozenset(ROLES), lambda like, share: like, given)
        loss = torch.stack([stacked.from_features(ctx, stacked.encode(ctx, x)).logits.square().sum() for x in images]).sum()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    expected = differentiated({})
    assert differentiated(leaves) == (None,) * len(leaves) and all(leaf.written for leaf in leaves.values())
    for leaf, gradient in zip(leaves.values(), expected, strict=True):
        assert gradient is not None
        torch.testing.assert_close(leaf.gradient, gradient)
