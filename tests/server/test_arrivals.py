"""An upload that cannot be merged is left out of its round, whatever the method, and leaves no trace."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.client.receiving import receive
from fedpriv.client.suspicion import secret_generator
from fedpriv.errors import FedprivError
from fedpriv.methods import methods
from fedpriv.methods.base import ServerState
from fedpriv.methods.mpfedcon import CENTERS, CLASSES, COUNTS
from fedpriv.server.clients import Instruction
from fedpriv.server.merging import not_finite
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import STATISTIC, Payload, Sealed, TransformContext, seal
from fedpriv.wire.report import Answer, Report
from tests.marks import FEW, slow_but
from tests.simulation.small import QUICK
from tests.simulation.small import simulation as prepare

Simulate = Callable[..., Simulation]
SIX = {
    "data.clients": 6,
    "data.limit": 300,
    "train.participation": 1.0,
    "model.projection": 16,
    "eval.every": 9,
    "eval.last": 1,
}
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

    def __init__(self, simulate: Simulate, method: str, **options: Any) -> None:
        self.simulation = simulation = simulate(method, play=False, **{**SIX, **QUICK.get(method, {}), **options})
        simulation.run_round()
        self._server, self._progress = copy.deepcopy(simulation.state), copy.deepcopy(simulation.progress)
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
        self.simulation.state, self.simulation.progress = copy.deepcopy(self._server), copy.deepcopy(self._progress)
        record = self.simulation.run_round()
        record["metrics"] = {n: v for n, v in record["metrics"].items() if n != "seconds" and "bytes" not in n}
        return self.simulation.state.row.clone(), copy.deepcopy(self.simulation.state.memory), record

    def of(self, answers: Sequence[Answer]) -> State:
        """The server's row and memory, and the record, after a round with these answers."""
        self.simulation.executor.train = lambda instruction: iter(answers)  # type: ignore[method-assign]
        return self._play()

    def without(self, client: int) -> State:
        return self.of([answer for answer in self.answers if answer.client != client])

    def with_changed(self, client: int, **tensors: Tensor) -> State:
        """With other tensors in one client's upload, by full name."""
        return self.of([changed(answer, tensors) if answer.client == client else answer for answer in self.answers])


def changed(answer: Answer, tensors: dict[str, Tensor], num_examples: int | None = None) -> Answer:
    old = answer.upload
    assert old is not None
    facts = (old.round, old.client, old.kind, num_examples or old.num_examples, old.transforms)
    return replace(answer, upload=seal(Payload({**old.tensors(), **tensors}, *facts)))


def poisonable(upload: Sealed) -> dict[str, Tensor]:
    """By name, the last model tensor of an upload and one statistic of each kind, with a NaN in the last place."""
    tensors = {name: tensor for name, tensor in upload.tensors().items() if tensor.is_floating_point() and tensor.numel()}
    one_of_each = {name.partition("/")[0] if name.startswith(STATISTIC) else "model": name for name in tensors}
    for name in one_of_each.values():
        tensors[name].reshape(-1)[-1] = math.nan
    return {name: tensors[name] for name in one_of_each.values()}


def same(first: State, second: State) -> bool:
    tables = first[1].keys() == second[1].keys() and all(torch.equal(table, second[1][name]) for name, table in first[1].items())
    return torch.equal(first[0], second[0]) and tables


@pytest.mark.parametrize(("method", "options"), slow_but(FEW, CASES), ids=named)
def test_a_poisoned_upload_of_six_leaves_the_round_of_the_five(simulate: Simulate, method: str, options: dict[str, Any]) -> None:
    second = SecondRound(simulate, method, **options)
    without = second.without(2)
    assert not same(without, second.whole), "or the test could not fail"
    upload = second.answers[2].upload
    assert upload is not None
    for name, tensor in poisonable(upload).items():
        row, memory, record = after = second.with_changed(2, **{name: tensor})
        assert same(after, without), name
        assert all(torch.isfinite(tensor).all() for tensor in (row, *memory.values()))
        assert record["refused"] == [{"client": 2, "reason": f"{name} is not finite"}]
        metrics = {n: v for n, v in record["metrics"].items() if n not in ("participants", "refused", "padding")}
        assert metrics == {n: v for n, v in without[2]["metrics"].items() if n not in ("participants", "padding")}
        assert record["metrics"]["refused"] == 1


@pytest.mark.parametrize("counts", [False, True], ids=["plain", "counts"])
def test_classes_that_do_not_exist_and_centres_that_do_not_fit(simulate: Simulate, counts: bool) -> None:
    weighting = {"method.center_weighting": "counts" if counts else "plain"}
    second = SecondRound(simulate, "mpfedcon", **weighting)
    without, sent = second.without(2), second.answers[2].upload
    assert sent is not None
    classes, centers = sent.tensors()[CLASSES], sent.tensors()[CENTERS]
    bad: list[tuple[dict[str, Tensor], str]] = [
        ({CLASSES: classes.clone().index_fill_(0, torch.tensor([len(classes) - 1]), 10)}, "not 0 to 9"),
        ({CLASSES: classes.clone().index_fill_(0, torch.tensor([0]), -1)}, "not 0 to 9"),
        ({CLASSES: classes[:1].repeat(len(classes))}, "does not rise"),
        ({CLASSES: classes + 0.5}, "is of torch.float32"),
        ({CLASSES: classes[None]}, "shape"),
        ({CENTERS: centers[:, :-1].contiguous()}, "shape"),
        ({CENTERS: centers[:1]}, "shape"),
    ]
    if counts:
        bad += [({COUNTS: torch.zeros(len(classes), dtype=torch.int32)}, "not 1 to"), ({COUNTS: classes[:1].int()}, "shape")]
    for tensors, reason in bad:
        after = second.with_changed(2, **tensors)
        assert same(after, without), tensors
        assert reason in after[2]["refused"][0]["reason"]


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
    second = SecondRound(simulate, method, **options)
    upload = second.answers[2].upload
    assert upload is not None
    dtype = upload.tensors()[name].dtype
    after = second.with_changed(2, **{name: torch.ones(3, dtype=dtype)})
    assert same(after, second.without(2))
    assert after[2]["refused"][0]["reason"].startswith(f"{name} has shape [3], not ")


def test_where_every_upload_is_left_out_the_server_stays_as_it_was(simulate: Simulate) -> None:
    second = SecondRound(simulate, "mpfedcon")
    nothing = second.of([])
    spoiled = [changed(answer, {CENTERS: torch.full((1, 16), math.nan)}) for answer in second.answers]
    after = second.of(spoiled)
    assert same(after, nothing) and "train_loss" not in after[2]["metrics"]
    assert [refusal["client"] for refusal in after[2]["refused"]] == list(range(6))


class Spoil:
    """A transform after which one client's centres are no numbers."""

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        spoils = payload.client == 4 and payload.round == 2
        centers = payload.tensors[CENTERS] * (math.nan if spoils else 1.0)
        return payload.with_tensors({**payload.tensors, CENTERS: centers}, str(self))


@pytest.mark.slow
def test_the_user_and_the_record_are_told_and_the_bytes_counted(tmp_path: Path) -> None:
    """And the next rounds train on: no centre of it stays in the bank."""
    warnings: list[str] = []
    run = prepare(tmp_path / "run", "mpfedcon", warnings.append, **{"train.participation": 1.0})
    clean = prepare(tmp_path / "clean", "mpfedcon", **{"train.participation": 1.0})
    run.federation.agreement.transforms = (Spoil(),)
    crossed: list[int] = []
    run.taps.append(lambda way, sealed: crossed.append(sealed.nbytes) if way != "down" else None)
    for played in (run, clean):
        played.start()
    records, others = list(run.rounds()), list(clean.rounds())
    reason = f"{CENTERS} is not finite"
    assert warnings == [f"round 2: what client 4 sent is refused: {reason}"]
    assert [record.get("refused") for record in records] == [None, [{"client": 4, "reason": reason}], None]
    assert [record["metrics"].get("refused") for record in records] == [None, 1, None]
    assert sum(record["metrics"]["bytes_up"] for record in records) == sum(crossed) and len(crossed) == 60
    assert records[1]["metrics"]["train_loss"] != others[1]["metrics"]["train_loss"], "its loss is not in the record either"
    assert all(torch.isfinite(tensor).all() for tensor in (run.state.row, *run.state.memory.values()))


def reported(answer: Answer, **changes: Any) -> Answer:
    """With another report."""
    return replace(answer, report=replace(Report.of(answer.report), **changes).seal())


ANSWERS: list[tuple[str, Callable[[Answer], Answer], str]] = [
    ("not asked", lambda answer: replace(answer, client=17), "it was not asked in this round"),
    ("replayed", lambda answer: reported(answer, round=1), "its report is of client 2 in round 1"),
    ("another's", lambda answer: reported(answer, client=3), "its report is of client 3 in round 2"),
    ("no samples", lambda answer: reported(answer, num_examples=0), "it reports 0 samples, not 1 to"),
    ("absurd samples", lambda answer: reported(answer, num_examples=10**12), "it reports 1000000000000 samples, not 1 to"),
    ("another number", lambda answer: reported(answer, num_examples=1), "it reports 1 samples and declared"),
    ("two numbers", lambda answer: changed(answer, {}, num_examples=1), "it uploads 1 samples and reports"),
    (
        "steps of DP-SGD",
        lambda answer: reported(answer, spent=[(0.5, 3)]),
        "it reports DP-SGD steps, but the run has no sample-level DP",
    ),
    ("a number of the server", lambda answer: reported(answer, numbers={"global_accuracy": 1.0}), "it reports global_accuracy"),
    ("a huge number", lambda answer: reported(answer, numbers={"x": -1e300}), "number/x of its report is -1e+300"),
    ("a huge loss", lambda answer: reported(answer, loss=1e308), "loss of its report is 1e+308"),
    ("infinite loss", lambda answer: reported(answer, loss=math.inf), "loss of its report is not finite"),
    ("no upload", lambda answer: replace(answer, upload=None), "it uploads nothing"),
    ("upload of nothing", lambda answer: reported(answer, diverged=True), "it uploads, but it diverged"),
    ("upload as report", lambda answer: replace(answer, report=answer.upload), "it is not a report"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("change", "reason"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
def test_an_answer_that_was_not_asked_for_is_refused(simulate: Simulate, change: Callable[[Answer], Answer], reason: str) -> None:
    second = SecondRound(simulate, "mpfedcon")
    wrong = [change(answer) if answer.client == 2 else answer for answer in second.answers]
    after = second.of(wrong)
    record = after[2]
    assert same(after, second.without(2))
    assert [reason in refusal["reason"] for refusal in record["refused"]] == [True]
    assert 2 not in second.simulation.progress.clients or second.simulation.progress.clients[2] == 1, (
        "the local update did not count"
    )


FEDREP_DP = {"data.limit": 240, "privacy.level": "sample", "privacy.noise": 3.0, "method.head_epochs": 2}


@pytest.mark.parametrize(
    "spent",
    [
        lambda due: [],
        lambda due: [(1.0, 2**31 - 1), due[1]],
        lambda due: due[:1],
        lambda due: due[::-1],
        lambda due: [*due, (0.5, 1)],
        lambda due: [(rate, steps - 1) for rate, steps in due],
    ],
    ids=["nothing", "a huge number of steps", "one of two phases", "in another order", "one more", "fewer steps"],
)
def test_steps_of_dp_sgd_that_are_not_those_of_the_update_are_refused_and_these_are_booked(
    simulate: Simulate, spent: Any
) -> None:
    second = SecondRound(simulate, "fedrep", **FEDREP_DP)
    second.of(second.answers)
    booked = copy.deepcopy(second.simulation.progress.privacy["2"])
    assert booked != second._progress.privacy["2"]
    due = list(Report.of(second.answers[2].report).spent)
    size = second.simulation.federation.data.size(2)
    assert due == [(20 / size, 2 * math.ceil(size / 20)), (20 / size, math.ceil(size / 20))]
    answers = [reported(answer, spent=spent(due)) if answer.client == 2 else answer for answer in second.answers]
    after = second.of(answers)
    assert same(after, second.without(2)) and not same(after, second.whole)
    reason = f"its DP-SGD steps are not those of a local update on {size} samples"
    assert after[2]["refused"] == [{"client": 2, "reason": reason}]
    assert second.simulation.progress.privacy["2"] == booked


def test_a_update_that_diverges_has_spent_the_phases_that_it_began(simulate: Simulate) -> None:
    second = SecondRound(simulate, "fedrep", **FEDREP_DP, **{"train.on_nan": "drop"})
    due = list(Report.of(second.answers[2].report).spent)

    def diverged(spent: Any) -> State:
        broken = replace(reported(second.answers[2], diverged=True, spent=spent), upload=None)
        return second.of([broken if answer.client == 2 else answer for answer in second.answers])

    assert "refused" not in diverged(due[:1])[2] and "refused" not in diverged(due)[2]
    assert "its DP-SGD steps are not" in diverged(due[1:])[2]["refused"][0]["reason"]


def test_a_phase_of_no_epochs_spends_nothing_and_is_not_refused(simulate: Simulate) -> None:
    second = SecondRound(simulate, "fedrep", **FEDREP_DP | {"method.head_epochs": 0})
    assert "refused" not in second.whole[2] and len(second.simulation.progress.privacy) == 6


def test_a_second_answer_of_a_client_is_refused_and_the_first_counts(simulate: Simulate) -> None:
    second = SecondRound(simulate, "scaffold")
    after = second.of([*second.answers, changed(second.answers[0], {})])
    assert same(after, second.whole)
    assert second.simulation.store.damaged({0: 2}) is None, "the state of the local update that counts is still there"
    assert after[2]["refused"] == [{"client": 0, "reason": "it has answered before"}]


def test_a_thousandfold_update_is_refused_where_the_change_is_bounded(simulate: Simulate) -> None:
    second = SecondRound(simulate, "fedavg", **{"train.max_update_norm": 5.0})
    assert "refused" not in second.whole[2]
    upload = second.answers[2].upload
    assert upload is not None
    after = second.with_changed(2, **{name: 1000 * tensor for name, tensor in upload.tensors().items()})
    assert same(after, second.without(2))
    assert after[2]["refused"][0]["reason"].endswith("over 5")


def test_with_too_few_uploads_the_model_stays(simulate: Simulate) -> None:
    second = SecondRound(simulate, "scaffold", **{"train.min_uploads": 6})
    before = second._server.row
    row, _, record = second.without(2)
    assert torch.equal(row, before) and record["metrics"]["too_few_uploads"] == 1
    assert set(second.simulation.progress.clients.values()) == {1}, "nor do the clients' local updates count"
    assert not torch.equal(second.whole[0], before) and "too_few_uploads" not in second.whole[2]["metrics"]


@pytest.mark.parametrize(
    ("aggregation", "spoiled"),
    slow_but(["fedopt"], [("fedopt", "fedopt.variance"), ("fedatt", "the model"), ("l-dawa", "the model")]),
)
def test_where_finite_uploads_would_merge_to_none_the_server_stays_as_it_was(
    simulate: Simulate, aggregation: str, spoiled: str
) -> None:
    """Nor does any local update of the round count, so that clients go on from their states of the round before."""
    second = SecondRound(simulate, "fedper", aggregation=aggregation)
    run, before, warnings = second.simulation, second._server, list[str]()
    assert "not_finite" not in second.whole[2]["metrics"] and set(run.progress.clients.values()) == {2}
    upload = second.answers[2].upload
    assert upload is not None
    run._merger.warn = warnings.append
    after = second.with_changed(2, **{name: torch.full_like(tensor, 3.3e38) for name, tensor in upload.tensors().items()})
    assert same(after, (before.row, before.memory, {})) and not same(second.whole, after)
    assert after[2]["metrics"]["not_finite"] == 1 and "refused" not in after[2]
    (warning,) = warnings
    assert f"merging would make {spoiled} infinite or NaN, though all uploads are finite" in warning
    assert f"(set train.max_update_norm to refuse them), or the merge of aggregation {aggregation} has a fault" in warning
    assert set(run.progress.clients.values()) == {1}
    assert all(run.store.damaged({client: 2}) is not None for client in range(6)), "their states of that turn are gone"


def test_numbers_of_a_merge_that_are_not_finite_stand_in_no_record(simulate: Simulate) -> None:
    second = SecondRound(simulate, "fedavg", aggregation="fedu")
    upload = second.answers[2].upload
    assert upload is not None
    after = second.with_changed(2, **{name: torch.full_like(tensor, 1e20) for name, tensor in upload.tensors().items()})
    assert "not_finite" not in after[2]["metrics"] and any(name.startswith("l-dawa/") for name in after[2]["metrics"])
    assert all(math.isfinite(value) for value in after[2]["metrics"].values())


def test_a_sum_that_overflows_is_no_number_that_is_not_finite() -> None:
    assert not_finite(ServerState(torch.full((8,), 3e38), {"count": torch.tensor([1])})) is None
    assert not_finite(ServerState(torch.zeros(2), {"a": torch.tensor([math.inf, -math.inf])})) == "a"
    assert not_finite(ServerState(torch.tensor([1.0, math.nan]))) == "the model"


@pytest.mark.slow
def test_a_run_may_be_told_to_stop_and_what_is_refused_is_not_kept(tmp_path: Path) -> None:
    for policy in ("drop", "stop"):
        overrides = {"train.participation": 1.0, "train.on_refused": policy, "wire.keep_payloads": "all"}
        run = prepare(tmp_path / policy, "mpfedcon", **overrides)
        run.federation.agreement.transforms = (Spoil(),)
        run.start()
        run.run_round()
        if policy == "stop":
            with pytest.raises(FedprivError, match=r"round 2: what client 4 sent is refused: .*train\.on_refused=drop"):
                run.run_round()
            continue
        run.run_round()
        kept = {path.name for path in (tmp_path / policy / "payloads" / "round-0002").iterdir()}
        assert {"client-0003.safetensors", "report-0003.safetensors"} <= kept
        assert not {"client-0004.safetensors", "report-0004.safetensors"} & kept
        assert run.progress.clients[4] == 1 and run.store.damaged({4: 2}) is not None, "its state of that turn is gone"


DOWNLOADS: list[tuple[str, Callable[[Payload], Payload], str]] = [
    ("replayed", lambda draft: replace(draft, round=1), "of kind weights for round 1"),
    ("a report", lambda draft: replace(draft, kind="report", num_examples=3), "of kind report"),
    ("a part", lambda draft: less(draft, "encoder.fc1.weight"), "encoder.fc1.weight is missing"),
    ("a private tensor", lambda draft: more(draft, "head.weight", torch.zeros(10, 16)), "head.weight is nothing that the server"),
    ("an unknown tensor", lambda draft: more(draft, "encoder.x", torch.zeros(1)), "encoder.x is nothing that the server sends"),
    ("transposed", lambda draft: more(draft, NAME, draft.tensors[NAME].T), "has shape [64, 128], not [128, 64]"),
    ("of half precision", lambda draft: more(draft, NAME, draft.tensors[NAME].half()), "is of torch.float16, not torch.float32"),
    ("NaN", lambda draft: more(draft, NAME, draft.tensors[NAME] * math.nan), f"{'encoder.fc1.weight'} is not finite"),
    ("NaN in a centre", lambda draft: more(draft, CENTERS, draft.tensors[CENTERS] * math.nan), "statistic.centers is not finite"),
]
NAME = "encoder.fc1.weight"


def more(draft: Payload, name: str, tensor: Tensor) -> Payload:
    return replace(draft, tensors={**draft.tensors, name: tensor})


def less(draft: Payload, name: str) -> Payload:
    return replace(draft, tensors={other: tensor for other, tensor in draft.tensors.items() if other != name})


@pytest.mark.parametrize(("change", "reason"), [case[1:] for case in DOWNLOADS], ids=[case[0] for case in DOWNLOADS])
def test_a_client_refuses_what_the_server_should_not_send(
    simulate: Simulate, change: Callable[[Payload], Payload], reason: str
) -> None:
    run = simulate("mpfedcon", play=False, **SIX)
    draft = run.federation.method.download(run.state, 2)
    assert draft is not None
    receive(run.agreement, 2, seal(draft), run.agreement.initial, secret_generator())
    with pytest.raises(FedprivError, match=f"what the server sent for round 2 is refused: .*{re.escape(reason)}"):
        receive(run.agreement, 2, seal(change(draft)), run.agreement.initial, secret_generator())


def test_a_running_variance_below_zero_is_refused_on_both_sides(simulate: Simulate) -> None:
    small = {"data.limit": 60, "data.clients": 2, "train.participation": 1.0, "data.image_size": 32}
    run = simulate("fedavg", play=False, **small, **{"model.name": "cnn10_batchnorm"})
    train, name, why = run.executor.train, "encoder.bn1.running_var", "encoder.bn1.running_var is below zero"

    def lowered(sealed: Sealed) -> Sealed:
        sent = sealed.tensors()
        return seal(Payload(sent | {name: -sent[name]}, sealed.round, sealed.client, num_examples=sealed.num_examples))

    def one_lies(instruction: Instruction) -> Iterator[Answer]:
        for answer in train(instruction):
            yield replace(answer, upload=lowered(answer.upload)) if answer.client == 0 and answer.upload else answer

    run.executor.train = one_lies  # type: ignore[method-assign]
    refused = run.run_round()["refused"]
    assert [refusal["client"] for refusal in refused] == [0] and refused[0]["reason"].startswith(why)
    download = run.agreement.method.download(run.state, 2)
    assert download is not None
    receive(run.agreement, 2, seal(download), run.agreement.initial, secret_generator())
    with pytest.raises(FedprivError, match=f"what the server sent for round 2 is refused: {why}"):
        receive(run.agreement, 2, lowered(seal(download)), run.agreement.initial, secret_generator())
