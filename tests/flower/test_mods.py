"""Flower apps are recorded without a change, and protected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.audit.foreign.program import load_program
from fedpriv.errors import UsageError
from fedpriv.privacy.accountant import epsilon
from fedpriv.recorder.layout import PROGRAM
from fedpriv.recorder.reader import Recorded

pytestmark = pytest.mark.extra("deploy")
pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from fedpriv.flower import RecordedStrategy, RequireClip, protect, record  # noqa: E402
from tests.flower.app import CLIENTS, LocalGrid, run  # noqa: E402
from tests.recorder.loop import samples, small_net  # noqa: E402

FACTS: dict[str, Any] = {
    "classes": 3,
    "input_shape": (1, 6, 6),
    "net": "tests.recorder.loop:small_net",
    "training": {"lr": 0.5, "local_epochs": 1, "batch_size": 4},
}


def in_order(grid: LocalGrid) -> list[Message]:
    """The replies by round and client, as Flower draws the order of clients."""
    numbered = [(place // CLIENTS, reply.metadata.src_node_id, reply) for place, reply in enumerate(grid.answers)]
    return [reply for *_, reply in sorted(numbered, key=lambda entry: entry[:2])]


def test_a_recorded_app_sends_the_same_bytes(tmp_path: Path) -> None:
    plain, model = run([])
    mod = record(tmp_path, **FACTS, truth=lambda context: samples(6, int(context.node_config["partition-id"])))
    grid, same = run([mod])
    assert all(torch.equal(model[name], same[name]) for name in model)
    for first, second in zip(in_order(plain), in_order(grid), strict=True):
        for name, array in first.content["arrays"].items():
            assert array.data == second.content["arrays"][name].data
    read = Recorded(tmp_path)
    assert read.answered() == [(1, read.clients[0]), (1, read.clients[1]), (2, read.clients[0]), (2, read.clients[1])]
    assert set(read.clients) == {"0", "1"} and "Flower" in read.facts.framework
    sent = read.tensors(2, "0", "down")
    answers = [read.tensors(1, client, "up") for client in ("0", "1")]
    assert sent is not None and answers[0] is not None and answers[1] is not None
    for name, tensor in sent.items():  # what is sent in round 2 is the mean of the answers of round 1
        assert torch.allclose(tensor, (answers[0][name] + answers[1][name]) / 2, atol=1e-6)
    assert read.truth("1") is not None and read.lines[1, "0", "up"].num_examples == 6


def test_a_second_run_is_recorded_beside_the_first(tmp_path: Path) -> None:
    run([record(tmp_path / "record", **FACTS)])
    with pytest.warns(UserWarning, match="this one is recorded in .*record-7"):
        run([record(tmp_path / "record", **FACTS)], rounds=1, number=7)
    assert len(Recorded(tmp_path / "record").answered()) == 4 and len(Recorded(tmp_path / "record-7").answered()) == 2
    with pytest.raises(UsageError, match="another run"):
        RecordedStrategy(FedAvg(), tmp_path / "record", **FACTS)


@pytest.mark.slow
def test_a_net_is_recorded_as_a_program(tmp_path: Path) -> None:
    run([record(tmp_path / "clients", **{**FACTS, "net": small_net()})])
    RecordedStrategy(FedAvg(), tmp_path / "server", **{**FACTS, "net": small_net()})
    for folder in (tmp_path / "clients", tmp_path / "server"):
        assert Recorded(folder).facts.net == PROGRAM
        assert load_program(folder / PROGRAM)(samples(4, 1)[0]).shape == (4, 3)


def test_the_server_records_the_same_tensors_as_the_clients(tmp_path: Path) -> None:
    mod = record(tmp_path / "clients", **FACTS)
    run([mod], wrap=lambda strategy: RecordedStrategy(strategy, tmp_path / "server", **FACTS))
    clients, server = Recorded(tmp_path / "clients"), Recorded(tmp_path / "server")
    assert {line.sha256 for line in clients.lines.values()} == {line.sha256 for line in server.lines.values()}
    assert set(server.clients) == {"100", "101"}


def test_protect_clips_the_change(tmp_path: Path) -> None:
    run([record(tmp_path, **FACTS), protect("clip:norm=0.05")])
    read = Recorded(tmp_path)
    for round, client in read.answered():
        sent, answer = read.tensors(round, client, "down"), read.tensors(round, client, "up")
        assert sent is not None and answer is not None
        length = sum(float((answer[name] - sent[name]).double().square().sum()) for name in sent) ** 0.5
        assert length == pytest.approx(0.05, rel=1e-4)


def test_noise_has_the_declared_deviation_and_is_new_each_time(tmp_path: Path) -> None:
    noises = []
    for number in range(2):
        folder = tmp_path / str(number)
        run([record(folder, **FACTS), protect("clip:norm=1e-9 gaussian:variance=0.04")], rounds=1)
        read = Recorded(folder)
        sent, answer = read.tensors(1, "0", "down"), read.tensors(1, "0", "up")
        assert sent is not None and answer is not None
        noises.append(torch.cat([(answer[name] - sent[name]).flatten() for name in sent]))
    assert noises[0].std() == pytest.approx(0.2, rel=0.1) and not torch.allclose(*noises)


def test_a_client_answers_no_more_when_its_budget_is_spent(tmp_path: Path) -> None:
    two = epsilon([(2.0, 1.0, 2)], 1e-5, "prv")
    private = protect(dp_client={"noise": 2.0, "clip": 0.5, "delta": 1e-5, "target_epsilon": two + 0.01})
    grid, _ = run([record(tmp_path, **FACTS), private], rounds=3)
    read = Recorded(tmp_path)
    assert [line.epsilon for line in read.lines.values() if line.direction == "up"][-1] == pytest.approx(two)
    assert len(read.answered()) == 4 and [answer.has_error() for answer in grid.answers] == [False] * 4 + [True] * 2
    assert "over target_epsilon" in grid.answers[-1].error.reason
    assert [(it.round, it.refused) for it in read.refusals] == [(3, grid.answers[-1].error.reason)] * 2


def masked(message: Message, context: Any, call_next: Any) -> Message:
    """Stands where ``secaggplus_mod`` does: takes the stage off the message, and masks the arrays of the reply."""
    message.content["secaggplus_configs"].pop("stage")
    reply = call_next(message, context)
    for key, arrays in list(reply.content.array_records.items()):
        masks = {name: Array(np.zeros(array.shape, np.int64)) for name, array in arrays.items()}
        reply.content.array_records[key] = ArrayRecord(masks)
    return reply


def test_protection_inside_of_secure_aggregation_works_and_outside_is_refused(tmp_path: Path) -> None:
    staged = ConfigRecord({"stage": "collect_masked_vectors"})

    def stage(strategy: Any) -> Any:
        configure = strategy.configure_train
        strategy.configure_train = lambda *given: [
            Message(content=RecordDict({**it.content, "secaggplus_configs": staged.copy()}), dst_node_id=it.metadata.dst_node_id,
                    message_type=it.metadata.message_type) for it in configure(*given)
        ]  # fmt: skip
        return strategy

    private = protect(dp_client={"noise": 2.0, "clip": 1e-3, "delta": 1e-5, "target_epsilon": 8})
    inside, _ = run([masked, record(tmp_path / "inside", **FACTS), private], rounds=1, wrap=stage)
    assert not any(answer.has_error() for answer in inside.answers) and len(Recorded(tmp_path / "inside").answered()) == CLIENTS
    outside, _ = run([record(tmp_path / "outside", **FACTS), private, masked], rounds=1, wrap=stage)
    assert all("before secaggplus_mod" in answer.error.reason for answer in outside.answers)
    assert not (tmp_path / "outside").exists()  # masked numbers are no weights


def test_protection_outside_of_compression_is_refused() -> None:
    def halved(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        arrays = {name: Array(array.numpy().astype(np.float16)) for name, array in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    grid, _ = run([protect("clip:norm=1"), halved], rounds=1)
    assert all("shape or type" in answer.error.reason for answer in grid.answers)
    grid, _ = run([halved, protect("clip:norm=1")], rounds=1)
    assert not any(answer.has_error() for answer in grid.answers)


@pytest.mark.parametrize(
    ("transforms", "options", "why"),
    [
        ("", {}, "transforms, such as"),
        ("clip", {"dp_client": {"noise": 1.0}}, "transforms, such as"),
        ("mask:last=1", {}, "changes the form"),
        ("clop", {}, "clop"),
        ("", {"dp_client": {"noise": 0}}, "dp_client.noise"),
        ("", {"dp_client": {"noise": 1, "epsilon": 3}}, "dp_client.epsilon"),
    ],
)
def test_protection_that_cannot_be_is_refused(transforms: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        protect(transforms, **options)


def test_a_server_leaves_out_answers_that_are_too_long() -> None:
    def shortened(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        return protect("clip:norm=0.05")(message, context, lambda *_: reply) if context.node_id == 100 else reply

    wrapped = list[RequireClip]()

    def wrap(strategy: Any) -> RequireClip:
        wrapped.append(RequireClip(strategy, norm=0.05))
        return wrapped[0]

    grid, model = run([shortened], rounds=1, wrap=wrap)
    assert wrapped[0].refused == {1: [101]}
    kept = next(reply for reply in grid.answers if reply.metadata.src_node_id == 100)
    expected = kept.content["arrays"].to_torch_state_dict()
    assert all(torch.allclose(model[name], expected[name]) for name in model)


def test_answers_that_are_no_numbers_or_of_another_form_are_left_out() -> None:
    def spoiled(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_id == 101:
            shapes = {name: array.shape for name, array in reply.content["arrays"].items()}
            arrays = {name: Array(np.full(shape, np.nan, np.float32)) for name, shape in shapes.items()}
            content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content["metrics"]})
            return Message(content=content, reply_to=message)
        return reply

    wrapped = list[RequireClip]()

    def wrap(strategy: Any) -> RequireClip:
        wrapped.append(RequireClip(strategy, norm=100.0))
        return wrapped[0]

    run([spoiled], rounds=1, wrap=wrap)
    assert wrapped[0].refused == {1: [101]}
