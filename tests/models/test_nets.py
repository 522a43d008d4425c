"""The nets against the numbers of their papers and the promises of the roles."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedpriv.errors import UnknownName, UsageError
from fedpriv.models import ROLES, Net, build_model, describe, list_models, model_names, model_spec
from fedpriv.models.architectures.narrow_resnet import resnet9_narrow
from fedpriv.models.batched.layers import ForwardContext, to_stack
from fedpriv.models.batched.stacked import StackedNet, VmappedNet
from tests.marks import slow_but

BIG = {"densenet121", "densenet121_imagenet", "resnet18", "resnet18_imagenet", "resnet50", "vgg16", "vgg16_frozen"}
SMALL = sorted(set(model_names()) - BIG)


@pytest.fixture(autouse=True)
def _same_inputs_every_time() -> None:
    torch.manual_seed(0)


def parameters(net: Net) -> dict[str, int]:
    return {row.role: row.parameters for row in describe(net)}


def meta(name: str, shape: tuple[int, ...], classes: int, projection: int | None = 128) -> Net:
    with torch.device("meta"):
        return build_model(name, shape, classes, projection)


def seeded(name: str, shape: tuple[int, ...], classes: int, projection: int | None = 128, predictor: bool | int = False) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model(name, shape, classes, projection, predictor)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "projection", "encoder", "projector", "head"),
    [
        ("cnn10", (3, 32, 32), 10, 128, 307_192, 12_480, 1_290),
        ("cnn10_batchnorm", (3, 32, 32), 10, 128, 307_192 + 2 * 2 * 64, 12_480, 1_290),
        ("cnn100", (3, 32, 32), 100, 128, 1_062_144, 33_024, 12_900),
        ("cnn100_64", (3, 32, 32), 100, 128, 550_080, 33_024, 12_900),
        ("mlp_lineage", (1, 28, 28), 10, 128, 549_696, 12_480, 1_290),
        ("mlp2", (1, 28, 28), 10, None, 533_248, 0, 2_570),
        ("moon_cnn", (3, 32, 32), 10, 256, 61_156, 28_900, 2_570),
        ("lenet_sigmoid", (3, 32, 32), 100, None, 912 + 2 * 3_612, 0, 76_900),
        ("vgg16", (3, 32, 32), 10, None, 14_714_688, 0, 5_130),
    ],
)
def test_golden_sizes(
    name: str, shape: tuple[int, ...], classes: int, projection: int | None, encoder: int, projector: int, head: int
) -> None:
    assert parameters(meta(name, shape, classes, projection)) == {
        "encoder": encoder,
        "projector": projector,
        "predictor": 0,
        "head": head,
    }


def test_lenet5_is_the_44k_net() -> None:
    assert sum(parameters(meta("lenet5", (1, 28, 28), 10, None)).values()) == 44_426


def test_bytes_of_the_papers() -> None:
    """1.2 MB and 2.2 MB per transfer (MpFedcon, eq. 10)."""
    assert describe(meta("cnn10", (3, 32, 32), 10))[0].bytes == 1_228_768
    assert describe(meta("cnn100_64", (3, 32, 32), 100))[0].bytes == 2_200_320


def test_bytes_count_buffers() -> None:
    net = meta("resnet18", (3, 32, 32), 10)
    encoder = describe(net)[0]
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert encoder.bytes == 4 * encoder.parameters + sum(8 * m.num_features + 8 for m in norms)


def test_every_net_builds_at_its_own_input_with_role_prefixes() -> None:
    for spec in list_models():
        net = meta(spec.name, spec.input_shape, spec.classes)
        assert [name for name, _ in net.named_children()] == ["encoder", "projector", "head"]
        with_tensors = {"head", "projector"} if spec.name == "linear" else {"encoder", "projector", "head"}
        assert {key.split(".")[0] for key in net.state_dict()} == with_tensors
        assert net.feature_dim == net.projector.fc1.in_features and net.projection_dim == 128
        assert not any(getattr(m, "inplace", False) for m in net.modules())


def test_parameter_names_are_readable() -> None:
    names = list(meta("cnn10", (3, 32, 32), 10).state_dict())
    layers = ["encoder.conv1", "encoder.conv2", "encoder.fc1", "encoder.fc2", "projector.fc1", "projector.fc2", "head"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
def test_forward_shapes_and_composition(name: str) -> None:
    spec = model_spec(name)
    net = seeded(name, spec.input_shape, 7, projection=16, predictor=True).eval()
    assert [child for child, _ in net.named_children()] == list(ROLES)
    x = torch.rand(3, *spec.input_shape)
    out = net(x)
    h = net.encode(x)
    assert h.shape == out.features.shape == (3, net.feature_dim)
    assert out.projection.shape == (3, 16) and out.logits.shape == (3, 7)
    assert out.prediction is not None and out.prediction.shape == (3, 16)
    again = net.from_features(h)
    for whole, parts in zip(vars(out).values(), vars(again).values(), strict=True):
        assert torch.equal(whole, parts)
    first = net(x[:1])
    assert torch.allclose(first.logits, out.logits[:1], atol=1e-5)


def test_the_head_sits_on_z_without_activation() -> None:
    net = seeded("cnn10", (3, 32, 32), 10).eval()
    out = net(torch.rand(2, 3, 32, 32))
    assert (out.projection < 0).any()
    assert torch.equal(out.logits, nn.functional.linear(out.projection, net.head.weight, net.head.bias))


@pytest.mark.parametrize("form", ["net", "stacked", "vmapped"])
def test_the_head_may_sit_on_the_features_beside_a_projector(form: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = build_model("mlp2", (1, 8, 8), 10, 16, 8, head_on="features").eval()
    assert net.path == ("encoder", "head") and net.head.in_features == net.feature_dim
    x = torch.rand(2, 3, 1, 8, 8)  # two clients' batches, who hold the same net
    if form == "net":
        h, z, logits = (torch.stack([getattr(net(own), name) for own in x]) for name in ("features", "projection", "logits"))
    else:
        together = StackedNet(net) if form == "stacked" else VmappedNet(net)
        tensors = {name: tensor.expand(2, *tensor.shape).clone() for name, tensor in net.state_dict().items()}
        ctx = ForwardContext(2, tensors, frozenset(), lambda like, share: torch.ones_like(like).expand(2, *like.shape))
        out = together.from_features(ctx, together.encode(ctx, to_stack(list(x), 3)))
        h, z, logits = out.features, out.projection, out.logits
    assert torch.allclose(logits, nn.functional.linear(h, net.head.weight, net.head.bias), atol=1e-5)
    assert torch.allclose(z, net.projector(h), atol=1e-5)


def test_without_projector_and_predictor() -> None:
    net = seeded("mlp2", (1, 8, 8), 10, projection=None)
    out = net(torch.rand(2, 1, 8, 8))
    assert out.projection is out.features and out.prediction is None
    assert net.projection_dim == net.feature_dim == 256
    assert {key.split(".")[0] for key in net.state_dict()} == {"encoder", "head"}


def test_predictor_widths() -> None:
    widths = [seeded("mlp2", (4,), 2, 16, predictor).predictor for predictor in (True, 1, 40)]
    assert [(p.fc1.in_features, p.fc1.out_features, p.fc2.out_features) for p in widths] == [
        (16, 16, 16),
        (16, 1, 16),
        (16, 40, 16),
    ]


def test_the_predictor_is_simsiams() -> None:
    from lightly.models.modules.heads import SimSiamPredictionHead

    ours = seeded("mlp2", (4,), 2, 16, 8).predictor.train()
    theirs = SimSiamPredictionHead(16, 8, 16)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    z = torch.rand(5, 16)
    assert torch.equal(ours(z), theirs(z)) and (ours(z) < 0).any()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(z[:1])


def test_the_net_of_fedsiam_da() -> None:
    """ResNet-50 with MOON's projector and a quarter-width predictor: 28.3 M parameters at 100 classes."""
    with torch.device("meta"):
        sizes = parameters(build_model("resnet50", (3, 32, 32), 100, 256, 64))
    assert sizes == {
        "encoder": 23_500_352,
        "projector": 2048 * 2049 + 2049 * 256,
        "predictor": 256 * 64 + 2 * 64 + 65 * 256,
        "head": 25_700,
    }
    assert sum(sizes.values()) == pytest.approx(28.3e6, rel=0.002)


def test_parameters_come_from_the_global_generator() -> None:
    first, second = (seeded("cnn10", (3, 32, 32), 10).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_dropout_only_in_training() -> None:
    net = seeded("cnn100", (3, 32, 32), 100)
    x = torch.rand(4, 3, 32, 32)
    assert not torch.equal(net.train().encode(x), net.encode(x))
    assert torch.equal(net.eval().encode(x), net.encode(x))
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.6]


def test_sigmoid_lenet_is_drawn_from_u_half_everywhere() -> None:
    net = seeded("lenet_sigmoid", (3, 32, 32), 10, projection=None)
    assert net.feature_dim == 768
    for name, values in net.named_parameters():
        assert values.abs().max() <= 0.5, name
        if values.numel() > 1000:
            assert values.abs().max() > 0.49 and abs(values.mean()) < 0.05, name
            assert values.std().item() == pytest.approx(12**-0.5, abs=0.02), name
    assert net.encoder.conv3.bias.abs().max() > 0.1  # the default would be at most 1 / sqrt(300) = 0.058
    assert seeded("lenet_sigmoid", (1, 28, 28), 10, projection=None).feature_dim == 588  # iDLG's MNIST net


@pytest.mark.parametrize("name", sorted(set(SMALL) | {"resnet18"}))
@pytest.mark.parametrize("channels", [1, 3])
def test_one_or_three_channels_at_the_smallest_size(name: str, channels: int) -> None:
    side = model_spec(name).smallest or 1
    net = seeded(name, (channels, side, side + 3), 5).eval()
    assert net(torch.rand(2, channels, side, side + 3)).logits.shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "side"),
    slow_but(
        ["resnet50", "vgg16", "resnet18_imagenet"],
        [
            *[("resnet50", 8), ("densenet121", 8), ("vgg16", 32), ("densenet121", 65), ("vgg16", 65)],
            *[("resnet18_imagenet", 32), ("densenet121_imagenet", 32)],
        ],
    ),
)
@pytest.mark.parametrize("channels", [1, 3])
def test_big_nets_at_the_smallest_size_of_each_stem(name: str, side: int, channels: int) -> None:
    net = meta(name, (channels, side, side), 5).eval()
    out = net(torch.empty(2, channels, side, side, device="meta"))
    assert out.features.shape == (2, net.feature_dim) and out.logits.shape == (2, 5)


def test_stems() -> None:
    small, large = (meta("resnet18", (3, side, side), 10).encoder for side in (64, 65))
    assert small.conv1.kernel_size == (3, 3) and small.conv1.stride == (1, 1) and isinstance(small.maxpool, nn.Identity)
    assert large.conv1.kernel_size == (7, 7) and isinstance(large.maxpool, nn.MaxPool2d)
    kept = meta("resnet18_imagenet", (1, 32, 32), 10).encoder
    assert kept.conv1.kernel_size == (7, 7) and isinstance(kept.maxpool, nn.MaxPool2d)
    features = meta("densenet121_imagenet", (3, 32, 32), 10).encoder.features
    assert features.conv0.kernel_size == (7, 7) and isinstance(features.pool0, nn.MaxPool2d)
    assert meta("vgg16", (3, 64, 64), 10).feature_dim == 512
    assert meta("vgg16", (3, 224, 224), 10).feature_dim == 4096


def test_imagenet_stem_is_torchvisions_net_bit_for_bit() -> None:
    from torchvision.models import resnet18

    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = resnet18().state_dict()
    ours = seeded("resnet18", (3, 96, 96), 10, None).encoder.state_dict()
    assert set(reference) - set(ours) == {"fc.weight", "fc.bias"}
    assert all(torch.equal(ours[key], reference[key]) for key in ours)


def test_densenet_computes_what_torchvisions_does() -> None:
    from torchvision.models import densenet121

    net = seeded("densenet121", (3, 65, 65), 10, None).eval()
    reference = densenet121()
    reference.classifier = nn.Identity()
    reference.features.load_state_dict(net.encoder.features.state_dict())
    x = torch.rand(1, 3, 65, 65)
    with torch.no_grad():
        assert torch.allclose(net.encode(x), reference.eval()(x), atol=1e-5)


def test_small_vgg_is_initialised_as_torchvisions() -> None:
    encoder = seeded("vgg16", (1, 32, 32), 10).encoder
    for layer in encoder.features:
        if isinstance(layer, nn.Conv2d):
            assert not layer.bias.any()
            assert layer.weight.std().item() == pytest.approx((2 / (9 * layer.out_channels)) ** 0.5, rel=0.1)


@pytest.mark.parametrize("name", SMALL)
def test_torch_func_takes_per_client_gradients(name: str) -> None:
    """Two clients stacked along a new leading dimension give each one's own gradient."""
    spec = model_spec(name)
    net = seeded(name, spec.input_shape, 3, projection=8).eval()
    weights = {key: value.detach() for key, value in net.named_parameters()}
    x, y = torch.rand(2, 4, *spec.input_shape), torch.randint(3, (2, 4))

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(net, weights, (x,)).logits, y)

    stacked = {key: torch.stack([value, value]) for key, value in weights.items()}
    both = vmap(grad(loss))(stacked, x, y)
    for client in range(2):
        for key, value in grad(loss)(weights, x[client], y[client]).items():
            assert torch.allclose(both[key][client], value, atol=1e-5), key


def test_does_not_fit() -> None:
    with pytest.raises(
        UsageError, match=r"'cnn10' does not fit inputs of 1x8x8: .*at least 16; these nets fit: .*mlp_lineage"
    ) as info:
        build_model("cnn10", (1, 8, 8), 10)
    assert "vgg16" not in str(info.value)
    for name, shape in [("cnn10", (784,)), ("vgg16", (3, 31, 40)), ("mlp2", ()), ("mlp2", (0, 3))]:
        with pytest.raises(UsageError, match="does not fit"):
            build_model(name, shape, 10)


@pytest.mark.parametrize(
    ("what", "arguments"), [("classes", (0,)), ("projection", (10, 0)), ("predictor", (10, 8, -1)), ("predictor", (10, 8, 0))]
)
def test_widths_below_one(what: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"{what} must be at least 1"):
        build_model("mlp2", (4,), *arguments)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown model 'cnn1'; did you mean 'cnn10'"):
        build_model("cnn1", (3, 32, 32), 10)


def test_projectors_of_self_supervision() -> None:
    from lightly.models.modules.heads import BarlowTwinsProjectionHead, SimCLRProjectionHead

    h = torch.rand(6, 256, generator=torch.Generator().manual_seed(0))
    projectors = {
        kind: build_model("mlp2", (4,), 2, 16, projector=kind).projector for kind in ("linear", "simclr", "barlow_twins")
    }
    assert all(module(h).shape == (6, 16) for module in projectors.values())
    assert sum(p.numel() for p in projectors["linear"].parameters()) == 257 * 16
    for kind, theirs in (
        ("simclr", SimCLRProjectionHead(256, 256, 16)),
        ("barlow_twins", BarlowTwinsProjectionHead(256, 16, 16)),
    ):
        theirs.load_state_dict(projectors[kind].state_dict())  # by the same names
        assert torch.equal(theirs.train()(h), projectors[kind].train()(h))
    assert [type(layer).__name__ for layer in build_model("mlp2", (4,), 2, 16).projector] == ["Linear", "ReLU", "Linear"]


def test_the_narrow_resnet_is_lightlys() -> None:
    from lightly.models.resnet import ResNetGenerator

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = resnet9_narrow((3, 32, 32))[0].eval()
        after = torch.rand(3)
        torch.manual_seed(0)
        theirs = ResNetGenerator("resnet-9", width=1 / 8).eval()
        assert torch.equal(after, torch.rand(3))  # they draw as many numbers
    theirs.linear = torch.nn.Identity()
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert net(x).shape == (3, 64)
    torch.testing.assert_close(net(x), theirs(x))  # they pool in another order
    assert build_model("resnet9_narrow", (1, 8, 8), 10).encoder(torch.rand(2, 1, 8, 8)).shape == (2, 64)
