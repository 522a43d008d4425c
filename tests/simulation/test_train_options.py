"""AdamW, warm-up, batches in parts, and bfloat16: what a step then is, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from transformers import get_constant_schedule_with_warmup

from fedpriv.audit.record.run import RunRecord
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.client.resident import Resident
from fedpriv.config import load_config
from fedpriv.data.federated import Split
from fedpriv.errors import UsageError
from fedpriv.interfaces import Learner, LocalUpdate, Step
from fedpriv.methods.base import phase
from fedpriv.objectives import Objective
from fedpriv.objectives.cross_entropy import PLAIN, cross_entropy
from fedpriv.parameters import ParameterSpace
from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed, statistic
from tests.marks import quick_first
from tests.simulation.small import play

Simulate = Callable[..., Simulation]
ADAMW = {"train.optimizer": "adamw", "train.lr": 1e-3, "train.weight_decay": 0.5}
PLAIN_SGD = {"train.momentum": 0.0, "train.weight_decay": 0.0}


def update_of(simulation: Simulation, client: int = 0, purpose: str = "train") -> ModelLocalUpdate:
    fed = simulation.federation
    fed.resident.row.copy_(fed.initial)
    return ModelLocalUpdate(fed.resident, fed.data.train(client), fed.config, 1, client, {}, {}, True, purpose, fed.augment)


def by_hand(
    simulation: Simulation,
    update: ModelLocalUpdate,
    make: Callable[[Any], torch.optim.Optimizer],
    schedule_of: Callable[[torch.optim.Optimizer, int], LRScheduler],
) -> Tensor:
    """The row after two phases, of two epochs and of one, in plain torch.

    Args:
        schedule_of: (optimiser, number of steps) -> torch's scheduler.
    """
    fed = simulation.federation
    net = copy.deepcopy(fed.resident.net)
    for parameter in net.parameters():
        parameter.data, parameter.grad = parameter.data.clone(), None
        parameter.requires_grad_(True)
    net.train()
    groups = [[p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim < 2]]
    for number, epochs in enumerate((2, 1), start=1):
        optimiser = make(groups)
        schedule = schedule_of(optimiser, epochs * math.ceil(update.num_examples / 12))
        draw = generator(fed.config.seed, update.round, update.client, "train", number, "shuffle")
        for _ in range(epochs):
            for part in torch.split(torch.randperm(update.num_examples, generator=draw), 12):
                optimiser.zero_grad()
                F.cross_entropy(net(update.inputs[part]).logits, update.labels[part]).backward()  # type: ignore[index]
                optimiser.step()
                schedule.step()
    return fed.resident.space.row_of(net)


def trained(update: ModelLocalUpdate) -> Tensor:
    update.train(phase(epochs=2), cross_entropy)
    update.train(phase(epochs=1), cross_entropy)
    return update.row


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": groups[0], "weight_decay": 1e-4}, {"params": groups[1]}], lr=0.05, momentum=0.5)


def adam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": groups[0], "weight_decay": 1e-4}, {"params": groups[1]}], lr=1e-3)


def adamw(groups: Any) -> torch.optim.Optimizer:
    decayed, free = {"params": groups[0], "weight_decay": 0.5}, {"params": groups[1], "weight_decay": 0.0}
    return torch.optim.AdamW([decayed, free], lr=1e-3)


def rmsprop(groups: Any) -> torch.optim.Optimizer:
    decayed, free = {"params": groups[0], "weight_decay": 1e-4}, {"params": groups[1]}
    return torch.optim.RMSprop([decayed, free], lr=1e-3, alpha=0.9, momentum=0.5)


def nesterov(groups: Any) -> torch.optim.Optimizer:
    decayed, free = {"params": groups[0], "weight_decay": 1e-4}, {"params": groups[1]}
    return torch.optim.SGD([decayed, free], lr=0.05, momentum=0.5, nesterov=True)


RMSPROP = {"train.optimizer": "rmsprop", "train.lr": 1e-3, "train.optimizer_options": {"alpha": 0.9, "momentum": 0.5}}
WITHIN: dict[str, tuple[dict[str, Any], Callable[[torch.optim.Optimizer, int], LRScheduler]]] = {
    "constant": ({}, lambda optimiser, steps: get_constant_schedule_with_warmup(optimiser, 0)),
    "warm-up": ({"train.warmup_steps": 5}, lambda optimiser, steps: get_constant_schedule_with_warmup(optimiser, 5)),
    "cosine": ({"train.local_lr_schedule": "cosine"}, lambda optimiser, steps: CosineAnnealingLR(optimiser, steps)),
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({}, sgd),
        ({"train.optimizer": "adam", "train.lr": 1e-3}, adam),
        (ADAMW, adamw),
        (RMSPROP, rmsprop),
        ({"train.optimizer_options": {"nesterov": True}}, nesterov),
    ],
    ids=["sgd", "adam", "adamw", "rmsprop", "nesterov"],
)
def test_steps_are_torchs_at_torchs_rates(simulate: Simulate, options: dict[str, Any], make: Any, within: str) -> None:
    changes, schedule_of = WITHIN[within]
    simulation = simulate("fedavg", play=False, **{"train.batch_size": 12, **changes, **options})
    update = update_of(simulation)
    assert update.num_examples > 4 * 12, "the phases are longer than the warm-up"
    expected = by_hand(simulation, update, make, schedule_of)
    torch.testing.assert_close(trained(update), expected, rtol=1e-5, atol=1e-5)


def test_adamws_decay_is_not_adams(simulate: Simulate) -> None:
    updates = (update_of(simulate("fedavg", play=False, **{**ADAMW, "train.optimizer": name})) for name in ("adamw", "adam"))
    decoupled, coupled = (trained(update).clone() for update in updates)
    assert float((decoupled - coupled).abs().max()) > 1e-3


class Noting(Objective):
    """Plain steps whose learning rates are noted."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        self.rates.append(learner.lr)


def test_the_rate_rises_in_each_phase_of_training_and_not_in_adaptation(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"train.warmup_steps": 4, "train.lr": 0.2})
    update, how = update_of(simulation), Noting()
    for _ in range(2):
        update.train(phase(epochs=1, steps=6), cross_entropy, how)
    assert how.rates == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.2] * 2)
    assert [phase.lr for phase in update.phase_results] == [0.2, 0.2]
    adapting, how = update_of(simulation, purpose="adapt"), Noting()
    adapting.train(phase(epochs=1, steps=1), cross_entropy, how)
    assert how.rates == [0.2] and not torch.equal(adapting.row, adapting.start)


def test_option_two_of_scaffold_divides_by_the_rates_that_were(simulate: Simulate) -> None:
    options = {"method.variate": "II", "train.rounds": 1, "train.local_steps": 5, "train.warmup_steps": 3, **PLAIN_SGD}
    simulation, sent = simulate("scaffold", play=False, **options), list[Sealed]()
    simulation.taps.append(lambda way, sealed: sent.append(sealed) if way == "up" else None)
    for _ in simulation.rounds():
        pass
    space, initial = simulation.federation.resident.space, simulation.federation.initial
    for upload in sent:
        tensors = upload.tensors()
        for name in (entry.name for entry in space.entries if entry.kind != "buffer"):
            moved = space.view(initial, name) - tensors[name]
            rates = 0.05 * (0 + 1 / 3 + 2 / 3 + 1 + 1)
            torch.testing.assert_close(tensors[statistic("variate", name)], moved / rates, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_steps_without_momentum_warm_up_too(simulate: Simulate) -> None:
    warm = {"train.warmup_steps": 2, "train.local_steps": 6}
    scaffold = simulate("scaffold", **warm, **{"train.momentum": 0.0})
    every = simulate("fedpvr", **warm, **{"train.momentum": 0.9, "method.layers": ["*"]})
    assert torch.equal(scaffold.state.row, every.state.row)
    assert not torch.equal(
        scaffold.state.row, simulate("scaffold", **{**warm, "train.momentum": 0.0, "train.warmup_steps": 0}).state.row
    )


def test_decoupled_decay_is_no_part_of_scaffolds_variates(simulate: Simulate) -> None:
    options = {"train.rounds": 1, "train.batch_size": 500, **ADAMW}
    simulation, sent = simulate("scaffold", play=False, **options), list[Sealed]()
    simulation.taps.append(lambda way, sealed: sent.append(sealed) if way == "up" else None)
    for _ in simulation.rounds():
        pass
    for upload in sent:
        update = update_of(simulation, upload.client or 0)
        gradient = simulation.federation.resident.space.unpack(update.gradient())
        tensors = upload.tensors()
        for name, tensor in gradient.items():
            if statistic("variate", name) in tensors:
                torch.testing.assert_close(tensors[statistic("variate", name)], tensor, rtol=1e-4, atol=1e-6)


def test_warm_up_where_a_method_counts_steps_or_never_ends_it(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"fednova.*train\.warmup_steps=0"):
        simulate("fednova", **{"train.warmup_steps": 2})
    with pytest.raises(UsageError, match=r"fednova.*train\.local_lr_schedule=null"):
        simulate("fednova", **{"train.local_lr_schedule": "cosine"})
    with pytest.raises(UsageError, match=r"fednova.*train\.optimizer_options"):
        simulate("fednova", **{"train.optimizer_options": {"nesterov": True}})
    with pytest.raises(UsageError, match=r"fednova.*train\.keep_optimizer=false"):
        simulate("fednova", **{"train.keep_optimizer": True})
    with pytest.raises(UsageError, match="warmup_steps 5: a phase of 5 local_steps never reaches its lr"):
        load_config(None, {"train.warmup_steps": 5, "train.local_steps": 5})


@pytest.mark.parametrize(
    "option",
    quick_first(
        [
            {"train.warmup_steps": 2},
            {"train.optimizer": "adamw"},
            {"train.optimizer": "rmsprop"},
            {"train.optimizer_options": {"nesterov": True}},
            {"train.local_lr_schedule": "cosine"},
        ],
        2,
    ),
)
def test_an_attacker_is_told_no_schedule_that_was_not(tmp_path: Path, option: dict[str, Any]) -> None:
    schedules = []
    for number, options in enumerate(({}, option)):
        play(tmp_path / str(number), "fedavg", **{"train.rounds": 1, **options})
        evidence = RunRecord(tmp_path / str(number))
        message = evidence.message(*evidence.messages()[0])
        schedules.append(evidence.attacker.schedule(message, message.num_examples or 0))
    assert schedules[0] is not None and schedules[1] is None


def in_float64(simulation: Simulation, client: int) -> ModelLocalUpdate:
    """A local update in which everything is in float64, as the second of the client: what it keeps is not what it received."""
    fed = simulation.federation
    net = copy.deepcopy(fed.resident.net).double()
    for parameter in net.parameters():
        parameter.grad = None
        parameter.requires_grad_(True)
    resident = Resident(net, ParameterSpace.of(net), fed.resident.device)
    initial = fed.initial.double()
    resident.row.copy_(initial)
    data = fed.data.train(client)
    assert isinstance(data.inputs, Tensor)
    download = fed.method.download(simulation.state, 1)
    assert download is not None
    received = {name: t.double() if t.is_floating_point() else t for name, t in download.tensors.items()}
    other = initial + 0.05 * torch.randn(len(initial), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = {**fed.method.initial_private(client, other), "moon.previous": other, "feddyn.displacement": 0.1 * (initial - other)}
    return ModelLocalUpdate(resident, Split(data.inputs.double(), data.labels), fed.config, 1, client, received, kept, False)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddyn", "moon", "mpfedcon", "ditto"])
def test_a_batch_in_parts_is_the_whole_batch(simulate: Simulate, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 20 in parts of 7, 7 and 6, the last one smaller; and no step is left out."""
    extra = {"method.center_init": "random_unit"} if method == "mpfedcon" else {}
    rows, losses = [], []
    for parts in (1, 3):
        options = {"train.batch_size": 20, "train.accumulate": parts, "model.projection": 16, "train.local_epochs": 2}
        simulation = simulate(method, play=False, **options, **extra)
        update = in_float64(simulation, simulation.participants(1)[0])
        assert update.num_examples % 20, "the last batch is another one"
        simulation.federation.method.local_update(update)
        rows.append(update.row.clone())
        losses.append(update.mean_loss)
    assert float((rows[0] - rows[1]).abs().max()) < 1e-12 and losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert float((rows[0] - simulation.federation.initial).abs().max()) > 1e-3


def test_parts_are_what_the_net_sees_and_weigh_their_samples(simulate: Simulate) -> None:
    """The control: a mean of the parts' means is another gradient where they are of unequal size."""
    simulation = simulate("fedavg", play=False, **{"train.batch_size": 20, "train.accumulate": 3, "train.local_steps": 1})
    sizes: list[int] = []

    def seen(step: Step) -> Tensor:
        sizes.append(len(step.labels))
        return cross_entropy(step)

    update = in_float64(simulation, 0)
    update.train(phase(epochs=1, steps=1), seen)
    assert sizes == [7, 7, 6]

    def unweighted(step: Step) -> Tensor:
        return cross_entropy(step) * (20 / len(step.labels) / 3)

    other = in_float64(simulation, 0)
    other.train(phase(epochs=1, steps=1), unweighted)
    assert float((update.row - other.row).abs().max()) > 1e-6


def test_a_batch_of_fewer_samples_than_parts(simulate: Simulate) -> None:
    rows = []
    for parts in (1, 8):
        update = in_float64(simulate("fedavg", play=False, **{"train.batch_size": 3, "train.accumulate": parts}), 0)
        update.train(phase(epochs=1), cross_entropy, PLAIN)
        rows.append(update.row.clone())
    assert float((rows[0] - rows[1]).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedavg", {"objective.name": "simclr"}, "simclr compares the samples"),
        ("fedavg", {"objective.name": "barlow-twins"}, "barlow-twins compares the samples"),
        ("scaffold", {}, "scaffold has its own step"),
        ("perfedavg", {}, "perfedavg has its own step"),
        ("apfl", {}, "apfl has its own step"),
        ("fedsiam-da", {}, "siamese has its own step"),
        ("fedavg", {"privacy.level": "sample", "privacy.noise": 1.0}, "privacy.level sample clips"),
    ],
)
def test_what_needs_whole_batches_says_so(simulate: Simulate, method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.accumulate 2: .*{message}.*train\.accumulate=1"):
        simulate(method, play=False, **options, **{"train.accumulate": 2})


def test_batch_norm_needs_parts_of_two(simulate: Simulate) -> None:
    options = {
        "model.name": "resnet9_narrow",
        "train.batch_size": 4,
        "train.accumulate": 4,
        "train.local_steps": 1,
        "train.rounds": 1,
    }
    with pytest.raises(UsageError, match=r"batch of 4, in up to 4 parts \(train\.accumulate\), and BatchNorm"):
        simulate("fedavg", **options)


@pytest.mark.parametrize("method", quick_first(["fedavg", "moon", "fedsiam-da"]))
def test_bfloat16_is_near_float32_and_only_within_the_net(simulate: Simulate, method: str) -> None:
    rows, options = [], {"train.rounds": 2, "data.clients": 2, "train.participation": 1.0, "model.projection": 16}
    for precision in ("float32", "bfloat16"):
        simulation, sent = simulate(method, play=False, **options, **{"train.precision": precision}), list[Sealed]()
        simulation.taps.append(lambda way, sealed, sent=sent: sent.append(sealed) if way != "report" else None)
        for _ in simulation.rounds():
            pass
        rows.append(simulation.state.row - simulation.federation.initial)
        tensors = [tensor for sealed in sent for tensor in sealed.tensors().values() if tensor.is_floating_point()]
        assert tensors and {tensor.dtype for tensor in tensors} == {torch.float32}
        assert simulation.federation.resident.grad.dtype == simulation.state.row.dtype == torch.float32
    off = float((rows[0] - rows[1]).norm() / rows[0].norm())
    assert 0 < off < 0.1, off


def test_what_is_frozen_or_only_looked_at_is_in_float32(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"train.precision": "bfloat16", "train.cache_features": False})
    update, seen = update_of(simulation), list[tuple[torch.dtype, bool]]()
    update.model.frozen.net.head.register_forward_hook(lambda module, x, y: seen.append((y.dtype, False)))
    update.model.net.head.register_forward_hook(lambda module, x, y: seen.append((y.dtype, module.training)))

    def loss(step: Step) -> Tensor:
        assert step.outputs.logits.dtype == step.teacher("first").logits.dtype == torch.float32
        return cross_entropy(step)

    update.freeze("first")
    update.train(phase(epochs=1, steps=1), loss)
    update.accuracy(), update.embed(), update.gradient()
    assert {training for dtype, training in seen if dtype == torch.bfloat16} == {True}
    assert {dtype for dtype, training in seen if not training} == {torch.float32}


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_private_steps_are_in_float32(simulate: Simulate, clipping: str) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 4.0, "privacy.clipping": clipping}
    with pytest.raises(UsageError, match=r"train\.precision bfloat16: privacy.level sample .*train\.precision=float32"):
        simulate("fedavg", play=False, **private, **{"train.precision": "bfloat16"})


@pytest.mark.slow
def test_private_steps_warm_up(simulate: Simulate) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 4.0, "train.rounds": 1}
    rows = [simulate("fedavg", **private, **{"train.warmup_steps": steps}).state.row for steps in (0, 3, 10**6)]
    initial = simulate("fedavg", play=False, **private).federation.initial
    moved = [float((row - initial).norm()) for row in rows]
    assert moved[0] > moved[1] > moved[2] and moved[2] < 1e-3 * moved[0]


def test_defaults_leave_the_runs_identity_as_it_was() -> None:
    stated = {"train.accumulate": 1, "train.warmup_steps": 0, "train.precision": "float32", "train.optimizer": "sgd"}
    assert load_config(None, stated).fingerprint() == load_config(None, {}).fingerprint()
    others = {"train.accumulate": 2, "train.warmup_steps": 1, "train.precision": "bfloat16", "train.optimizer": "adamw"}
    assert len({load_config(None, {key: value}).fingerprint() for key, value in others.items()}) == 4


def test_a_least_batch_above_the_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="min_batch 16 skips every batch of batch_size 10"):
        load_config(overrides={"train.min_batch": 16})
