"""An upload that cannot be merged is left out of its round, whatever the method, and leaves no trace."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.methods import methods
from fedpriv.methods.mpfedcon import CENTERS, CLASSES, COUNTS
from fedpriv.server.clients import Instruction
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import STATISTIC, Payload, Sealed, TransformContext, seal
from fedpriv.wire.report import Answer
from tests.simulation.small import simulation as prepare

Simulate = Callable[..., Simulation]
SIX = {"data.clients": 6, "train.participation": 1.0, "model.projection": 16, "eval.every": 9, "eval.last": 1}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name, kind in sorted(methods().items()) if kind.shared),
    ("mpfedcon", {"method.center_weighting": "counts", "method.center_ema": 0.5}),
    ("feddual", {"method.server_object": "lossgrad_mean"}),
    ("simprox", {"method.prev": "own", "method.per_step": True}),
    ("fednova", {"method.server_momentum": 0.9}),
    ("fedavg", {"aggregation": "l-dawa-loss"}),
    ("fedavg", {"aggregation": "fedu"}),
    ("fedavg", {"privacy.level": "client", "privacy.noise": 0.05, "privacy.clip": 0.1}),
]


def named(case: str | dict[str, Any]) -> str:
    return case if isinstance(case, str) else "-".join(map(str, case.values()))


State = tuple[Tensor, dict[str, Tensor], dict[str, Any]]


class SecondRound:
    """The second round of a federation of six, which can be played with any uploads, again and again."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        simulation.run_round()
        self._server, self._progress = copy.deepcopy(simulation.server), copy.deepcopy(simulation.progress)
        self.answers: list[Answer] = []
        train = simulation.executor.train

        def watched(instruction: Instruction) -> Iterator[Answer]:
            for answer in train(instruction):
                self.answers.append(answer)
                yield answer

        simulation.executor.train = watched  # type: ignore[method-assign]
        self.whole = self._play()
        self.answers.sort(key=lambda answer: answer.client)

    def _play(self) -> State:
        self.simulation.server, self.simulation.progress = copy.deepcopy(self._server), copy.deepcopy(self._progress)
        record = self.simulation.run_round()
        record["metrics"] = {n: v for n, v in record["metrics"].items() if n != "seconds" and "bytes" not in n}
        return self.simulation.server.row.clone(), copy.deepcopy(self.simulation.server.memory), record

    def of(self, answers: Sequence[Answer]) -> State:
        """The server's row and memory, and the record, after a round with these answers."""
        self.simulation.executor.train = lambda instruction: iter(answers)  # type: ignore[method-assign]
        return self._play()

    def without(self, client: int) -> State:
        return self.of([answer for answer in self.answers if answer.client != client])

    def with_changed(self, client: int, **tensors: Tensor) -> State:
        """With other tensors in one client's upload, by full name."""
        return self.of([changed(answer, tensors) if answer.client == client else answer for answer in self.answers])


def changed(answer: Answer, tensors: dict[str, Tensor]) -> Answer:
    old = answer.upload
    assert old is not None
    facts = (old.round, old.client, old.kind, old.num_examples, old.transforms)
    return replace(answer, upload=seal(Payload({**old.tensors(), **tensors}, *facts)))


def poisonable(upload: Sealed) -> dict[str, Tensor]:
    """By name, the last model tensor of an upload and one statistic of each kind, with a NaN in the last place."""
    tensors = {name: tensor for name, tensor in upload.tensors().items() if tensor.is_floating_point() and tensor.numel()}
    one_of_each = {name.partition("/")[0] if name.startswith(STATISTIC) else "model": name for name in tensors}
    for name in one_of_each.values():
        tensors[name].reshape(-1)[-1] = math.nan
    return {name: tensors[name] for name in one_of_each.values()}


def same(one: State, other: State) -> bool:
    tables = one[1].keys() == other[1].keys() and all(torch.equal(table, other[1][name]) for name, table in one[1].items())
    return torch.equal(one[0], other[0]) and tables


@pytest.mark.parametrize(("method", "options"), CASES, ids=named)
def test_a_poisoned_upload_of_six_leaves_the_round_of_the_five(simulate: Simulate, method: str, options: dict[str, Any]) -> None:
    second = SecondRound(simulate(method, play=False, **SIX, **options))
    without = second.without(2)
    assert not same(without, second.whole), "or the test could not fail"
    upload = second.answers[2].upload
    assert upload is not None
    for name, tensor in poisonable(upload).items():
        row, memory, record = after = second.with_changed(2, **{name: tensor})
        assert same(after, without), name
        assert all(torch.isfinite(one).all() for one in (row, *memory.values()))
        assert record["rejected"] == [{"client": 2, "reason": f"{name} is not finite"}]
        told = {n: v for n, v in record["metrics"].items() if n not in ("participants", "rejected", "padding")}
        assert told == {n: v for n, v in without[2]["metrics"].items() if n not in ("participants", "padding")}
        assert record["metrics"]["rejected"] == 1


@pytest.mark.parametrize("counts", [False, True], ids=["plain", "counts"])
def test_classes_that_do_not_exist_and_centres_that_do_not_fit(simulate: Simulate, counts: bool) -> None:
    weighting = {"method.center_weighting": "counts" if counts else "plain"}
    second = SecondRound(simulate("mpfedcon", play=False, **SIX, **weighting))
    without, sent = second.without(2), second.answers[2].upload
    assert sent is not None
    classes, centers = sent.tensors()[CLASSES], sent.tensors()[CENTERS]
    bad: list[tuple[dict[str, Tensor], str]] = [
        ({CLASSES: classes.clone().index_fill_(0, torch.tensor([0]), 10)}, "0..9"),
        ({CLASSES: classes.clone().index_fill_(0, torch.tensor([0]), -1)}, "0..9"),
        ({CLASSES: classes[:1].repeat(len(classes))}, "different"),
        ({CLASSES: classes + 0.5}, "0..9"),
        ({CLASSES: classes[None]}, "0..9"),
        ({CENTERS: centers[:, :-1].contiguous()}, "shape"),
        ({CENTERS: centers[:1]}, "shape"),
    ]
    if counts:
        bad += [({COUNTS: torch.zeros_like(classes)}, "positive"), ({COUNTS: classes[:1]}, "positive")]
    for tensors, reason in bad:
        after = second.with_changed(2, **tensors)
        assert same(after, without), tensors
        assert reason in after[2]["rejected"][0]["reason"]


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("fedavg", {}, "encoder.fc1.weight"),
        ("scaffold", {}, "statistic.variate/encoder.fc1.weight"),
        ("feddual", {"method.server_object": "lossgrad_mean"}, "statistic.gradient/head.weight"),
        ("fednova", {}, "statistic.step_weight"),
        ("simprox", {"method.prev": "own"}, "statistic.moved"),
        ("fedavg", {"aggregation": "l-dawa-loss"}, "statistic.loss"),
    ],
    ids=named,
)
def test_another_shape_is_left_out(simulate: Simulate, method: str, options: dict[str, Any], name: str) -> None:
    second = SecondRound(simulate(method, play=False, **SIX, **options))
    after = second.with_changed(2, **{name: torch.ones(3)})
    assert same(after, second.without(2))
    assert after[2]["rejected"][0]["reason"].startswith(f"{name} has shape [3], not ")


def test_where_every_upload_is_left_out_the_server_stays_as_it_was(simulate: Simulate) -> None:
    second = SecondRound(simulate("mpfedcon", play=False, **SIX))
    nothing = second.of([])
    spoiled = [changed(answer, {CENTERS: torch.full((1, 16), math.nan)}) for answer in second.answers]
    after = second.of(spoiled)
    assert same(after, nothing) and "train_loss" not in after[2]["metrics"]
    assert [one["client"] for one in after[2]["rejected"]] == list(range(6))


class Spoil:
    """A transform after which one client's centres are no numbers."""

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        if payload.client != 4 or payload.round != 2:
            return payload
        return payload.with_tensors({**payload.tensors, CENTERS: payload.tensors[CENTERS] * math.nan}, str(self))


def test_the_user_and_the_record_are_told_and_the_bytes_counted(tmp_path: Path) -> None:
    """And the next rounds train on: no centre of it stays in the bank."""
    warnings: list[str] = []
    run = prepare(tmp_path / "run", "mpfedcon", warnings.append, **{"train.participation": 1.0})
    clean = prepare(tmp_path / "clean", "mpfedcon", **{"train.participation": 1.0})
    run.federation.agreement.transforms = (Spoil(),)
    crossed: list[int] = []
    run.taps.append(lambda way, sealed: crossed.append(sealed.nbytes) if way != "down" else None)
    for one in (run, clean):
        one.start()
    records, others = list(run.rounds()), list(clean.rounds())
    reason = f"{CENTERS} is not finite"
    assert warnings == [f"round 2: the upload of client 4 is left out: {reason}"]
    assert [record.get("rejected") for record in records] == [None, [{"client": 4, "reason": reason}], None]
    assert [record["metrics"].get("rejected") for record in records] == [None, 1, None]
    assert sum(record["metrics"]["bytes_up"] for record in records) == sum(crossed) and len(crossed) == 60
    assert records[1]["metrics"]["train_loss"] != others[1]["metrics"]["train_loss"], "its loss is not in the record either"
    assert all(torch.isfinite(tensor).all() for tensor in (run.server.row, *run.server.memory.values()))
