"""Clients that train together end where they end one after another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from fedpriv.config import RunConfig, load_config
from fedpriv.data.dataset import Dataset
from fedpriv.data.partitions.partition import Partition
from fedpriv.errors import FedprivError, UsageError
from fedpriv.interfaces import phase
from fedpriv.methods import methods
from fedpriv.models import registry
from fedpriv.models.batched import compiled
from fedpriv.models.batched.layers import NotStackable
from fedpriv.models.batched.stacked import StackedNet
from fedpriv.models.registry import Shape, register_model
from fedpriv.server.clients import Instruction
from fedpriv.simulation.choice.costs import client_bytes
from fedpriv.simulation.choice.executor import choose
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.simulation.inputs import loading
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.simulation.vectorized import batched_models, requests, scheduler
from fedpriv.simulation.vectorized.scheduler import Request
from tests.marks import FEW, quick_first, slow_but
from tests.simulation.small import read_once
from tests.simulation.trial import SMALL, everything, play, register_pooled, user_nets

METHODS = slow_but(FEW, sorted(methods()))


class Joined(nn.Module):
    """A net that no stacked form is known for."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x), self.right(x)], 1).relu().flatten(1)


@pytest.fixture(scope="module", autouse=True)
def _partitioned_once() -> Iterator[None]:
    """Most runs here share a data set and its partition, which take as long as a round."""
    partition, partitions = loading.partition_dataset, dict[str, Partition]()

    def partition_dataset(dataset: Dataset, config: RunConfig) -> Partition:
        key = config.data.model_dump_json()
        if key not in partitions:
            partitions[key] = partition(dataset, config)
        return partitions[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "partition_dataset", partition_dataset)
        patch.setattr(loading, "read_data", read_once())
        yield


@pytest.fixture(autouse=True)
def _nets() -> Iterator[None]:
    with user_nets():
        register_pooled()

        @register_model("drawn", input_shape=(1, 8, 8), classes=10, source="test")
        def drawn(shape: Shape) -> tuple[nn.Module, int]:
            layers = [nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2)]
            more = [nn.Flatten(), nn.Linear(36, 16), nn.LayerNorm(16), nn.Tanh(), nn.Dropout(0.5)]
            return nn.Sequential(*layers, *more), 16

        @register_model("normed", input_shape=(1, 8, 8), classes=10, source="test")
        def normed(shape: Shape) -> tuple[nn.Module, int]:
            layers = OrderedDict[str, nn.Module](
                conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), relu=nn.ReLU(), flat=nn.Flatten()
            )
            return nn.Sequential(layers), 144

        @register_model("joined", input_shape=(1, 8, 8), classes=10, source="test")
        def joined(shape: Shape) -> tuple[nn.Module, int]:
            return Joined(), 144

        @register_model("wide", input_shape=(1, 8, 8), classes=10, source="test")
        def wide(shape: Shape) -> tuple[nn.Module, int]:
            return nn.Sequential(nn.Conv2d(1, 128, 8), nn.Flatten()), 128

        @register_model("pixels", input_shape=(1, 8, 8), classes=10, source="test")
        def pixels(shape: Shape) -> tuple[nn.Module, int]:
            return nn.Sequential(nn.Conv2d(1, 4, 8), nn.Dropout(0.5), nn.Flatten()), 4

        @register_model("recurring", input_shape=(1, 8, 8), classes=10, source="test")
        def recurring(shape: Shape) -> tuple[nn.Module, int]:
            layer = nn.Linear(12, 12)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), layer, nn.ReLU(), layer), 12

        yield


@pytest.fixture
def played(tmp_path: Path) -> Callable[..., Simulation]:
    """:func:`play`, in float64 if ``double``, each in a folder of its own."""
    numbers = count(1)

    def make(executor: str, double: bool = True, rounds: int = 2, **overrides: Any) -> Simulation:
        return play(tmp_path / f"runs{next(numbers)}", executor, double, rounds, **overrides)

    return make


def assert_same(together: Simulation, alone: Simulation, within: float) -> None:
    assert isinstance(together.executor, VectorizedExecutor) and not isinstance(alone.executor, VectorizedExecutor)
    left, right = dict(everything(together)), dict(everything(alone))
    assert left.keys() == right.keys()
    for name, value in left.items():
        scale = float(right[name].double().abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(
            value, right[name], rtol=0.0, atol=within * max(1.0, scale), msg=lambda message, name=name: f"{name}: {message}"
        )
    own, other = (simulation.progress.record["metrics"] for simulation in (together, alone))
    assert own["train_loss"] == pytest.approx(other["train_loss"], rel=1e3 * within)
    assert own["bytes_up"] == other["bytes_up"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method(played: Callable[..., Simulation], method: str) -> None:
    options = {"method.name": method, "train.min_batch": 2}
    together, alone = (played(executor, **options) for executor in ("vectorized", "sequential"))
    assert_same(together, alone, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "mpfedcon", "feddual", "moon", "ditto"])
def test_in_float32_up_to_rounding(played: Callable[..., Simulation], method: str) -> None:
    together, alone = (played(executor, False, **{"method.name": method}) for executor in ("vectorized", "sequential"))
    assert_same(together, alone, 1e-4)


NETS = ["drawn", "normed", "resnet9_narrow", "joined", "lenet_sigmoid", "mlp2", "recurring"]
OF_METHODS = [("mpfedcon", "drawn"), ("mpfedcon", "normed"), ("moon", "joined"), ("moon", "mlp2"), ("fedbn", "normed")]
"""What a method does beside a step meets a net's layers: those with random numbers, running statistics, no stacked form."""


@pytest.mark.parametrize(
    ("method", "net"), quick_first([*(("fedavg", net) for net in NETS), *OF_METHODS, ("fedbn", "resnet9_narrow")], 2)
)
def test_nets(played: Callable[..., Simulation], method: str, net: str) -> None:
    # BatchNorm over few samples amplifies rounding a thousandfold in a round, in every executor.
    options = {"method.name": method, "model.name": net, "train.min_batch": 4, "train.local_steps": 3}
    together, alone = (played(executor, **options) for executor in ("vectorized", "sequential"))
    assert_same(together, alone, 1e-6 if net == "resnet9_narrow" else 1e-9)


OPTIONS: list[dict[str, Any]] = [
    {"method.name": "moon", "data.augment": "crop_flip"},
    {"method.name": "mpfedcon", "data.augment": "crop_flip"},
    {"method.name": "mpfedcon", "train.cache_features": False},
    {"method.name": "mpfedcon", "method.negative": "R2"},
    {"method.name": "mpfedcon", "method.denominator": "all_centers"},
    {"method.name": "fedsiam-da", "train.min_batch": 2, "method.history": "step", "method.anchor": "frozen"},
    {"method.name": "fedsiam-da", "train.min_batch": 2, "model.head_on": "features"},
    {"method.name": "fedavg", "train.optimizer": "adam", "train.lr": 0.001},
    {"method.name": "feddyn", "train.optimizer": "adamw", "train.warmup_steps": 2, "train.clip_grad_norm": 0.5},
    {"method.name": "fedprox", "train.accumulate": 3},
    {"method.name": "fedavg", "train.momentum": 0.0, "train.weight_decay_bias": 0.01, "train.local_steps": 7},
    {"method.name": "perfedavg", "method.variant": "hessian_free"},
    {"method.name": "apfl", "method.adaptive": True},
    {"method.name": "scaffold", "method.variate": "I"},
    {"method.name": "feddual", "method.beta_mode": "epoch_running"},
    {"method.name": "fedavg", "privacy.level": "client", "privacy.noise": 0.5, "privacy.clip": 1.0},
    {"method.name": "fedavg", "executor.group_size": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(str(value) for value in options.values()))
def test_options(played: Callable[..., Simulation], options: dict[str, Any]) -> None:
    alone = {name: value for name, value in options.items() if not name.startswith("executor.")}
    assert_same(played("vectorized", **options), played("sequential", **alone), 1e-9)


@pytest.mark.slow
def test_a_group_of_any_size_is_the_same(played: Callable[..., Simulation]) -> None:
    sizes = [played("vectorized", **{"method.name": "fedavg", "executor.group_size": size}).state.row for size in (2, 3, 5, 99)]
    for row in sizes[1:]:
        torch.testing.assert_close(row, sizes[0], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_little_is_padded(played: Callable[..., Simulation]) -> None:
    """On Dirichlet(0.1), clients differ in everything; still no more than 15 % of the samples are made up."""
    options = {"data.partition.alpha": 0.1, "method.name": "fedavg", "train.participation": 1.0, "train.batch_size": 10}
    simulation = played("vectorized", **options)
    padding = simulation.progress.record["metrics"]["padding"]
    assert 0 <= padding <= requests.MAX_PADDING == 0.15
    data = simulation.federation.data
    assert simulation.executor.sample_count.real == 0  # read for the record
    simulation.executor.sample_count.real = 0
    for _ in simulation.executor.train(Instruction(9, simulation.participants(1), None)):
        pass
    assert simulation.executor.sample_count.real == 2 * sum(map(data.size, data.nonempty))  # two epochs of all samples


@pytest.mark.slow
def test_a_loss_is_computed_for_all_at_once(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of clients with equal batches call the loss once."""
    calls = []
    federation = played("vectorized", rounds=0, **{"method.name": "mpfedcon"}).federation
    kind = type(federation.method)
    original = kind.local_loss
    monkeypatch.setattr(kind, "local_loss", lambda self, step: (calls.append(1), original(self, step))[1])
    counted = []
    for executor in ("vectorized", "sequential"):
        calls.clear()
        together = {"executor.group_size": 4} if executor == "vectorized" else {}
        played(executor, **{"method.name": "mpfedcon", "data.partition.name": "iid", "data.limit": 320, **together})
        counted.append(len(calls))
    assert counted[0] < 0.4 * counted[1]


@pytest.mark.parametrize(
    ("options", "meetings"), [({}, 1), ({"objective.name": "fedprox"}, 2), ({"train.clip_grad_norm": 1.0}, 2)]
)
def test_a_step_is_one_request_unless_there_is_something_between_gradient_and_update(
    played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], meetings: int
) -> None:
    options = {"data.partition.name": "iid", "train.local_steps": 2, "executor.group_size": 4, **options}
    simulation = played("vectorized", rounds=0, **{"method.name": "fedavg", **options})
    asked: list[Any] = []
    original = scheduler.Scheduler.submit
    monkeypatch.setattr(
        scheduler.Scheduler, "submit", lambda self, handler, content: asked.append(handler) or original(self, handler, content)
    )
    simulation.run_round()
    assert len(asked) == meetings * 2 * simulation.progress.record["metrics"]["participants"]


def test_a_client_that_diverges_is_left_out_alone(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {}
    rows = []
    for executor in ("vectorized", "sequential"):
        simulation = played(executor, rounds=0, **{"method.name": "fedavg", "train.on_nan": "drop"})
        data = simulation.federation.data
        victim = simulation.participants(1)[0]
        train = data.train

        def poisoned(client: int, train: Any = train, victim: int = victim) -> Any:
            split = train(client)
            return split._replace(inputs=split.inputs * float("nan")) if client == victim else split

        monkeypatch.setattr(data, "train", poisoned)
        record = simulation.run_round()
        seen[executor] = [record["metrics"]["participants"], record["metrics"]["dropped"]]
        rows.append(simulation.state.row)
    assert seen["vectorized"] == seen["sequential"] == [4, 1]
    torch.testing.assert_close(*rows, rtol=0, atol=1e-12)


def test_what_stops_one_client_stops_the_run(played: Callable[..., Simulation]) -> None:
    with pytest.raises(UsageError, match=r"has a batch of 1, and BatchNorm needs more"):
        played("vectorized", **{"method.name": "fedavg", "model.name": "resnet9_narrow", "train.batch_size": 1})
    assert torch.is_grad_enabled()


@pytest.mark.slow
def test_a_group_that_does_not_fit_is_halved(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    reference = played("vectorized", **{"method.name": "fedrep"})
    original, sizes = batched_models.BatchedModels.run, []

    def cramped(self: batched_models.BatchedModels, functions: Any) -> Any:
        sizes.append(len(functions))
        if len(functions) > 2:
            original(self, functions)  # work that was done before memory runs out leaves no trace
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, functions)

    monkeypatch.setattr(batched_models.BatchedModels, "run", cramped)
    warnings: list[str] = []
    simulation = played("vectorized", rounds=0, **{"method.name": "fedrep", "executor.group_size": 4})
    assert isinstance(simulation.executor, VectorizedExecutor)
    simulation.executor._warn = warnings.append
    for _ in range(2):
        simulation.run_round()
    assert sizes[:3] == [4, 2, 2] and max(sizes[3:]) == 2
    assert warnings == ["4 clients at once do not fit into the memory of cpu: from now on 2 (--group-size)"]
    for (name, value), (_, expected) in zip(everything(simulation), everything(reference), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12, msg=name)


def test_a_client_that_does_not_fit_ends_the_run(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: batched_models.BatchedModels, functions: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(batched_models.BatchedModels, "run", full)
    with pytest.raises(FedprivError, match="a client does not fit into the memory of cpu; try a smaller --batch-size"):
        played("vectorized", **{"method.name": "fedavg"})


def test_the_memory_of_a_client_is_that_of_its_states_and_layers() -> None:
    net = registry.build_model("pooled", (1, 8, 8), 10, projection=None)
    config = load_config(None, {**SMALL, "method.name": "fedavg", "train.batch_size": 16})
    states = 4 * (40 + 592 + 170)
    outputs = 4 * 36 + 4 * 9 + 4 * 9 + 36 + 16 + 16 + 16 + 10  # convolution, pooling, ReLU, flat, linear, ReLU, projector, head
    assert client_bytes(config, net, torch.zeros(3, 1, 8, 8)) == 4 * (states + 2 * 16 * outputs)


@pytest.mark.parametrize(("clients", "most", "sizes"), [(10, 4, [3, 3, 4]), (3, 5, [3]), (10, 1, [1] * 10), (6, 3, [3, 3])])
def test_groups_are_even(played: Callable[..., Simulation], clients: int, most: int, sizes: list[int]) -> None:
    options = {"method.name": "fedavg", "executor.group_size": most, "data.clients": 12}
    simulation = played("vectorized", rounds=0, **options)
    groups = simulation.executor.groups(range(clients))
    assert [len(group) for group in groups] == sizes
    data = simulation.federation.data
    flat = [data.size(client) for group in groups for client in group]
    assert flat == sorted(flat, reverse=True)


DENSE_REP = {"method.name": "fedrep", "model.name": "mlp_lineage", "data.image_size": 28}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"model.name": "pooled"}, "vectorized, groups of up to 2 clients: the net is small, and several"),
        (
            {"model.name": "joined"},
            "sequential: this net trains one client at a time, more slowly, with the same results (encoder: call function",
        ),
        ({"model.name": "mlp2"}, "vectorized, groups of up to 2 clients: the net is small, and several"),
        ({"model.name": "mlp_lineage", "data.image_size": 28}, "steps on 554,466 parameters without convolutions gain nothing"),
        # Ten epochs of the head on cached features, and one of the whole net; with augmentation each is one of the whole net.
        ({**DENSE_REP, "train.local_epochs": 1}, "vectorized, groups of up to 2 clients: the net is small, and several"),
        ({**DENSE_REP, "train.local_epochs": 30}, "steps on 417,042 parameters without convolutions gain nothing"),
        ({**DENSE_REP, "data.augment": "crop_flip"}, "steps on 554,466 parameters without convolutions gain nothing"),
        ({"model.name": "wide"}, "sequential: convolutions of 128 channels use the CPU fully"),
        (
            {"model.name": "pixels"},
            "sequential: this net trains one client at a time, more slowly, with the same results (encoder.1: dropout on images",
        ),
        ({"train.participation": 0.125}, "sequential: one client a round"),
        ({"privacy.level": "sample", "privacy.noise": 1.0}, "sequential: per-sample gradients"),
        ({"executor.name": "sequential"}, "sequential: as requested"),
        (
            {"executor.name": "vectorized", "executor.group_size": 4, "model.name": "joined"},
            "groups of up to 4 clients: as requested",
        ),
    ],
)
def test_what_is_chosen_and_why(options: dict[str, Any], why: str) -> None:
    federation = build(load_config(None, {**SMALL, "method.name": "fedavg", **options}))
    assert why in str(federation.choice)
    assert federation.config.executor.name == str(federation.choice).partition(",")[0].partition(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "backend", "shapes"),
    [
        # All of torch.compile but the compiler. A batch of 16 and one of 9: each shape is compiled by itself.
        ({"method.name": "fedavg", "model.name": "normed", "train.batch_size": 16}, "aot_eager", 2),
        # Teachers are compiled in a mode of their own.
        ({"method.name": "moon", "model.name": "mlp2", "train.batch_size": 32}, "eager", 2),
    ],
    ids=["shapes", "teachers"],
)
def test_a_compiled_group_ends_where_it_ends(
    played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], backend: str, shapes: int
) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    monkeypatch.setattr(compiled, "BACKEND", counter)
    usual = {"train.min_batch": 2, "train.momentum": 0.5, "train.local_epochs": 1}
    options = {**usual, "data.partition.name": "iid", "train.participation": 0.75, **options}
    together = played("vectorized", **options, **{"executor.compile": "default"})
    assert "compiled" in str(together.federation.choice) and counter.frame_count >= 2 * shapes
    assert_same(together, played("sequential", **options), 1e-9)
    code = counter.frame_count
    together.run_round()
    assert counter.frame_count <= code + 2  # or each pass might be recompiled


@pytest.mark.slow
def test_what_cannot_be_compiled_says_why(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SMALL, "method.name": "fedavg", "executor.compile": "default"}
    with pytest.raises(UsageError, match=r"the executor is sequential \(as requested\); use --compile none"):
        build(load_config(None, {**options, "executor.name": "sequential"}))
    with pytest.raises(UsageError, match="the net runs as requested, by torch"):
        build(load_config(None, {**options, "executor.name": "vectorized", "model.name": "joined"}))

    torch._dynamo.reset()

    def breaks(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled, "BACKEND", breaks)
    with pytest.raises(FedprivError, match=r"cannot compile this net here \(.*no compiler.*\); use --compile none"):
        played("vectorized", **{"method.name": "fedavg", "model.name": "pooled", "executor.compile": "default"})


def test_clients_that_differ_too_much_in_size_go_one_by_one() -> None:
    net, config = registry.build_model("pooled", (1, 8, 8), 10), load_config(None, {**SMALL, "method.name": "fedavg"})
    phases = [phase(epochs=5)]
    image = torch.zeros(1, 1, 8, 8)
    uneven = choose(config, net, image, [1000, 10, 30, 10], phases)  # two groups, whose largest have 1000 and 10
    assert str(uneven).startswith("sequential: clients differ so much in size that only 1.0 would train at a time on average")
    assert choose(config, net, image, [1000, 800, 30, 20], phases).form is not None


def test_one_that_cannot_be_used_says_why() -> None:
    private = {"privacy.level": "sample", "privacy.noise": 1.0}
    with pytest.raises(UsageError, match="executor vectorized: per-sample gradients"):
        build(load_config(None, {**SMALL, "method.name": "fedavg", "executor.name": "vectorized", **private}))


def test_a_net_that_does_more_than_its_layers_is_not_taken_for_them() -> None:
    class Doubled(nn.Linear):
        """A layer by another name, which fx sees as its base class would be."""

        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    net = registry.build_model("pooled", (1, 8, 8), 10, projection=None)
    StackedNet(net)
    net.head = Doubled(16, 10)
    with pytest.raises(NotStackable):
        StackedNet(net)
    net.head = nn.Linear(16, 10)
    net.head.forward = lambda x: x.new_zeros(len(x), 10)  # type: ignore[method-assign]
    with pytest.raises(NotStackable, match="differs from its own"):
        StackedNet(net)


def test_shorter_batches_are_filled_up_within_the_bound() -> None:
    def lengths(*sizes: int, exact: bool = False) -> list[list[int]]:
        asked = [Request(SimpleNamespace(inputs=torch.zeros(size, 1)), True, None) for size in sizes]
        return [[len(request.content.inputs) for request in group] for group in requests._of_like_length(asked, exact)]

    assert lengths(16, 16, 16) == [[16, 16, 16]]
    assert lengths(16, 15, 12) == [[16, 15, 12]]  # 5 of 48
    assert lengths(16, 15, 11, 11) == [[16, 15, 11], [11]]  # 6 of 48, but 11 of 64
    assert lengths(16, 4, 3) == [[16], [4, 3]]
    assert lengths(16, 15, 15, exact=True) == [[16], [15, 15]]
