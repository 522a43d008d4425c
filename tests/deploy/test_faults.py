"""Clients that are silent, late, broken or malicious: the round continues without them, and nothing is counted twice."""

from __future__ import annotations

import errno
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.client import store
from fedpriv.deploy.client.client_node import ClientNode, _without_paths
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Envelope, Frame
from fedpriv.deploy.remote_clients import RemoteClients
from fedpriv.deploy.server_run import DECLARED, STOP
from fedpriv.deploy.transport import NOT_CONNECTED, NotSent
from fedpriv.deploy.versions import code_version
from fedpriv.errors import ClientDiverged, FedprivError, UsageError
from fedpriv.files import Damaged, load_json, save_json
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, seal, unseal
from fedpriv.wire.report import Report
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import ALL_KEPT, agree, client_nodes, go_on, hashes, play_apart
from tests.deploy.loopback import Loopback
from tests.marks import quick_first, slow_but
from tests.simulation.small import config, play

FOUR = {"data.clients": 4, "data.limit": 200, "model.projection": 8, "train.participation": 1.0, "executor.name": "sequential"}
SETTINGS = {**FOUR, **ALL_KEPT, "train.rounds": 3}


class Faulty(Loopback):
    """A loopback that spoils what a client answers to a local update or a test of a round."""

    def __init__(self, folder: Path, spoil: Any, settings: dict[str, Any] = SETTINGS, method: str = "mpfedcon") -> None:
        super().__init__(client_nodes(folder, config(method, **settings)))
        self.spoil = spoil

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        for client, answer in super().exchange(frames, seconds, round):
            asked = frames[client].head["entries"][-1]["do"]
            yield from ((client, spoilt) for spoilt in self.spoil(asked, round, client, answer))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [record["metrics"] for record in RunFolder.open(folder).records()]


SPOILED: dict[str, Any] = {
    "silent": lambda answer: [],
    "an error": lambda answer: ["its node is not connected"],
    "garbage": lambda answer: [replace(answer, parts=(b"garbage", b"too"))],
    "no report": lambda answer: [Frame({"entries": [{}]})],
    "no places": lambda answer: [Frame({"entries": [{"upload": 7, "report": -1}]})],
    "nothing": lambda answer: [Frame({})],
    "cut": lambda answer: [replace(answer, parts=tuple(part[:-1] for part in answer.parts))],
}


@pytest.mark.parametrize("how", slow_but(["garbage"], SPOILED))
def test_a_round_continues_without_an_invalid_answer(tmp_path: Path, how: str) -> None:
    def spoil(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        return SPOILED[how](answer) if (asked, round, client) == ("train", 2, 1) else [answer]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "mpfedcon", warnings, Faulty(tmp_path / "c", spoil), **SETTINGS)
    assert [record.get("missing") for record in metrics(folder)] == [None, None, 1, None]
    assert any("round 2" in text and "client 1" in text for text in warnings)
    assert not list((folder / "payloads" / "round-0002").glob("client-0001*"))
    assert len(list((folder / "payloads" / "round-0003").glob("client-*"))) == 4


def test_a_silent_client_is_warned_of_once_a_round(tmp_path: Path) -> None:
    def spoil(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        return ["its node is gone"] if client == 1 and asked in ("train", "test") else [answer]

    warnings: list[str] = []
    settings = SETTINGS | {"train.rounds": 2}
    play_apart(tmp_path / "run", "fedavg", warnings, Faulty(tmp_path / "c", spoil, settings, "fedavg"), **settings)
    named = [text for text in warnings if "client 1 gives no answer" in text]
    assert named == [f"round {number}: client 1 gives no answer: its node is gone" for number in (1, 2)]


@pytest.mark.slow
def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    grid = Faulty(tmp_path / "twice-clients", lambda asked, round, client, answer: [answer, answer])
    agree(play_apart(tmp_path / "twice", "mpfedcon", warnings, grid, **SETTINGS), play_whole(tmp_path))
    assert any("has answered before" in text for text in warnings)


@pytest.mark.slow
def test_an_answer_under_another_number_is_refused(tmp_path: Path) -> None:
    kept: dict[int, Any] = {}

    def exchanged(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if asked != "train" or round != 2:
            return [answer]
        kept[client] = answer
        return [kept[0]] if client == 1 else [answer]

    folder = play_apart(tmp_path / "run", "mpfedcon", grid=Faulty(tmp_path / "c", exchanged), **SETTINGS)
    assert [record.get("refused") for record in metrics(folder)] == [None, None, 1, None]


@pytest.mark.slow
def test_an_answer_of_an_old_round_is_refused(tmp_path: Path) -> None:
    old: list[Any] = []

    def replay(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if (asked, client) != ("train", 3):
            return [answer]
        old.append(answer)
        return [old[0]]

    folder = play_apart(tmp_path / "run", "mpfedcon", grid=Faulty(tmp_path / "c", replay), **SETTINGS)
    assert [record.get("refused") for record in metrics(folder)] == [None, None, 1, 1]


def play_whole(tmp_path: Path, method: str = "mpfedcon") -> Path:
    play(tmp_path / "whole", method, **SETTINGS)
    return tmp_path / "whole"


def diverged(answer: Frame) -> Frame:
    """The answer of a client that says that it diverged, and so has no upload."""
    report = answer.sealed(answer.entries[-1]["report"])
    assert report is not None
    envelope = Envelope()
    envelope.add({}, report=replace(Report.of(report), diverged=True, keeps=False).seal())
    return envelope.frame()


@pytest.mark.parametrize("chosen", [{}, {"train.on_nan": "stop"}], ids=["by default", "stop"])
def test_a_diverged_client_ends_the_run_only_with_on_nan_stop(tmp_path: Path, chosen: dict[str, Any]) -> None:
    def spoil(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        return [diverged(answer) if (asked, round, client) == ("train", 2, 1) else answer]

    settings, warnings = {**SETTINGS, **chosen}, list[str]()
    grid = Faulty(tmp_path / "c", spoil, settings, "fedavg")
    if chosen:
        with pytest.raises(ClientDiverged, match="client 1 diverged in round 2"):
            play_apart(tmp_path / "run", "fedavg", warnings, grid, **settings)
        return
    folder = play_apart(tmp_path / "run", "fedavg", warnings, grid, **settings)
    assert [len(list(folder.glob(f"payloads/round-000{round}/client-*"))) for round in (1, 2, 3)] == [4, 3, 4]
    assert RunFolder.open(folder).config().train.on_nan == "drop"
    assert any("client 1 diverged" in text and "left out" in text for text in warnings)


def test_on_nan_is_stop_in_simulations(tmp_path: Path) -> None:
    play(tmp_path / "whole", "fedavg", **{**SETTINGS, "train.rounds": 1})
    assert RunFolder.open(tmp_path / "whole").config().train.on_nan == "stop"


def test_an_aggregation_that_needs_all_clients_suggests_stop(tmp_path: Path) -> None:
    settings = {**SETTINGS, "train.rounds": 1, "aggregation.name": "euc"}
    play_apart(tmp_path / "run", "fedavg", **settings)
    assert RunFolder.open(tmp_path / "run").config().train.on_nan == "stop"


def nested() -> Any:
    """As deep as JSON is read; to show it takes more of the stack than there is."""
    value: Any = []
    for _ in range(2000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "answer",
    [
        Frame({"error": "\x1b[2J\x1b]0;mine\x07" + "A\n" * 10**5}),
        Frame({"error": nested()}),
        Frame({"entries": [{"upload": None, "report": "\x1b[2J" + "A" * 10**5}]}),
        Frame({"entries": [{"upload": nested(), "report": 0}]}),
    ],
    ids=["an error", "a nested error", "a place", "a nested place"],
)
def test_an_answer_is_shown_and_kept_as_one_short_line(tmp_path: Path, answer: Frame) -> None:
    def spoil(asked: str, round: int, client: int, honest: Any) -> list[Any]:
        return [answer if (asked, round, client) == ("train", 1, 2) else honest]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "fedavg", warnings, grid=Faulty(tmp_path / "c", spoil, method="fedavg"), **SETTINGS)
    reason = RunFolder.open(folder).records()[1]["missing"][0]["reason"]
    for text in (reason, *warnings):
        assert text.isprintable() and len(text) < 400
    assert reason in warnings[0]


class Killed(Exception):
    """Ends the server from the outside."""


@pytest.mark.parametrize("method", quick_first(["mpfedcon", "scaffold"]))
def test_a_server_killed_within_a_round_can_resume(tmp_path: Path, method: str) -> None:
    """Clients that had their local update take it again, from the state before it; all of them are other processes by then."""

    def die(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if (asked, round, client) == ("train", 2, 2):
            raise Killed
        return [answer]

    here = tmp_path / "run-clients"
    with pytest.raises(Killed):
        play_apart(tmp_path / "run", method, grid=Faulty(here, die, method=method), **SETTINGS)
    go_on(tmp_path / "run", Loopback(client_nodes(here, config(method, **SETTINGS))))
    agree(tmp_path / "run", play_whole(tmp_path, method))


@pytest.mark.slow
def test_clients_restarted_between_rounds_continue(tmp_path: Path) -> None:
    here, settings = tmp_path / "run-clients", config("scaffold", **SETTINGS)

    class Restarting(Loopback):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            self.nodes = client_nodes(here, settings)
            yield from super().exchange(frames, seconds, round)

    agree(play_apart(tmp_path / "run", "scaffold", grid=Restarting({}), **SETTINGS), play_whole(tmp_path, "scaffold"))


def test_a_client_that_has_lost_its_disk_gets_the_setup_again(tmp_path: Path) -> None:
    def lose(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if (asked, round, client) == ("test", 1, 0):
            shutil.rmtree(tmp_path / "c" / "client-0" / "runs")
            grid.nodes = {**grid.nodes, 0: client_nodes(tmp_path / "c", config("fedavg", **SETTINGS))[0]}
        return [answer]

    grid = Faulty(tmp_path / "c", lose, method="fedavg")
    folder = play_apart(tmp_path / "run", "fedavg", grid=grid, **SETTINGS)
    assert metrics(folder)[2]["missing"] == 1 and "missing" not in metrics(folder)[3]


@pytest.mark.parametrize("damage", ["bits", "cut"])
def test_a_damaged_initial_model_is_sent_again(tmp_path: Path, damage: str) -> None:
    """Its private layers begin there, whenever its first local update comes."""
    updates = {"train.selection": "schedule", "train.schedule": ((0, 2), (1, 2), (1, 2)), "train.participation": None}
    settings = {**SETTINGS, **updates}

    class Damaging(Faulty):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            if round == 2 and 1 in frames and frames[1].entries[-1]["do"] == "train":
                (file,) = (tmp_path / "c" / "client-1" / "runs" / "run").glob("broadcast*")
                data = bytearray(file.read_bytes()[: -7 if damage == "cut" else None])
                data[-100:-97] = b"\0\0\0"
                file.write_bytes(data)
                self.nodes = client_nodes(tmp_path / "c", config("fedper", **settings))  # started again
            yield from super().exchange(frames, seconds, round)

    warnings: list[str] = []
    grid = Damaging(tmp_path / "c", lambda asked, round, client, answer: [answer], settings, "fedper")
    folder = play_apart(tmp_path / "run", "fedper", warnings, grid, **settings)
    assert [record.get("missing") for record in metrics(folder)] == [None, None, 1, None]
    assert "unknown run run: the initial model that client 1 has kept of it is damaged" in warnings[0] and len(warnings) == 1


@pytest.mark.slow
def test_a_stopped_run_is_resumed(tmp_path: Path) -> None:
    def stop(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if asked == "train" and round == 1:
            (tmp_path / "run" / STOP).touch()
        return [answer]

    here = tmp_path / "run-clients"
    play_apart(tmp_path / "run", "mpfedcon", grid=Faulty(here, stop), **SETTINGS)
    assert RunFolder.open(tmp_path / "run").facts["status"] == "interrupted"
    go_on(tmp_path / "run", Loopback(client_nodes(here, config("mpfedcon", **SETTINGS))))
    agree(tmp_path / "run", play_whole(tmp_path))


QUICKLY = {**FOUR, "data.limit": 80, "train.rounds": 4}


def test_a_stop_requested_before_a_kill_holds_after_resuming(tmp_path: Path) -> None:
    def stopped_and_killed(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if (asked, round, client) == ("train", 2, 0):
            (tmp_path / "run" / STOP).touch()
            raise Killed
        return [answer]

    with pytest.raises(Killed):
        play_apart(tmp_path / "run", "fedavg", grid=Faulty(tmp_path / "c", stopped_and_killed, QUICKLY, "fedavg"), **QUICKLY)
    folder = RunFolder.open(tmp_path / "run")
    for done, status in ((1, "interrupted"), (4, "finished")):
        go_on(tmp_path / "run", Loopback(client_nodes(tmp_path / "c", config("fedavg", **QUICKLY))))
        assert folder.records()[-1]["round"] == done and folder.facts["status"] == status
        assert not (tmp_path / "run" / STOP).exists()


@pytest.mark.parametrize("selection", [{}, {"train.selection": "schedule", "train.schedule": ((0,), (1,), (2,), (3,))}])
def test_a_run_without_any_client_stops_and_can_be_resumed(tmp_path: Path, selection: dict[str, Any]) -> None:
    """Also where a round asks one of them, and the others have the model to test."""
    settings = {**QUICKLY, **selection} | ({"train.participation": None} if selection else {})
    play(tmp_path / "whole", "fedavg", **settings)
    away = Faulty(tmp_path / "run-clients", lambda *of: ["its node is gone"] if of[1] == 3 else [of[3]], settings, "fedavg")
    warnings: list[str] = []
    folder = RunFolder.open(play_apart(tmp_path / "run", "fedavg", warnings, away, **settings))
    assert folder.facts["status"] == "interrupted" and folder.records()[-1]["round"] == 3
    assert warnings[-1].startswith("round 3: no client gives an answer, so the run stops here; `fedpriv deploy resume ")
    go_on(tmp_path / "run", Loopback(client_nodes(tmp_path / "run-clients", config("fedavg", **settings))))
    assert folder.facts["status"] == "finished" and [record.get("missing") for record in metrics(folder.path)][3:] == [
        1 if selection else 4,
        None,
    ]


def test_a_run_continues_if_only_its_participants_are_away(tmp_path: Path) -> None:
    settings = {**QUICKLY, "train.selection": "schedule", "train.schedule": ((0,), (1,), (1,), (2,)), "train.participation": None}
    grid = Faulty(tmp_path / "c", lambda *of: ["its node is gone"] if of[2] == 1 and of[1] else [of[3]], settings, "fedavg")
    folder = RunFolder.open(play_apart(tmp_path / "run", "fedavg", grid=grid, **settings))
    assert folder.facts["status"] == "finished"
    assert [record.get("missing") for record in metrics(folder.path)] == [None, None, 1, 1, None]


def test_resuming_with_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        (tmp_path / "run" / STOP).touch() if (asked, round) == ("train", 1) else None
        return [answer]

    grid = Faulty(tmp_path / "c", stop, QUICKLY, "fedavg")
    folder = RunFolder.open(play_apart(tmp_path / "run", "fedavg", grid=grid, **QUICKLY))
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.deploy.server_run.code_version", lambda: "9.9+new")
        patch.setattr("fedpriv.deploy.client.client_node.code_version", lambda: "9.9+new")
        with pytest.raises(UsageError, match=rf"began with fedpriv {re.escape(code_version())}, .* this is 9\.9\+new; install"):
            go_on(tmp_path / "run", Loopback(client_nodes(tmp_path / "c", config("fedavg", **QUICKLY))))
    assert folder.records()[-1]["round"] == 1 and folder.facts["status"] == "interrupted"


@pytest.mark.parametrize("written", ["{}", '{"clients": 4}', '{"clients": []}', '{"clients": ['])
def test_a_damaged_declaration_file_is_named(tmp_path: Path, written: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(config("fedavg", **SETTINGS).to_yaml())
    save_json(tmp_path / "run" / "run.json", {"deployed": {"code": code_version()}})
    (tmp_path / "run" / DECLARED).write_text(written)
    with pytest.raises(Damaged, match=r"declared\.json is damaged"):
        go_on(tmp_path / "run", Loopback({}))


TRAIN = {"do": "train", "round": 1, "last": None}


def describe(values: dict[str, Any]) -> dict[str, Any]:
    return {"do": "describe", "code": code_version(), "config": values}


def refusal(node: ClientNode, run: str, request: dict[str, Any]) -> str:
    """The error that a client answers to a request."""
    return str(node.answer(Frame({"run": run, "entries": [request]})).error)


def test_errors_are_sent_without_paths(tmp_path: Path) -> None:
    node = client_nodes(tmp_path / "secret-place", config("fedavg", **SETTINGS))[0]
    error = refusal(node, "strange", TRAIN)
    assert error.startswith("unknown run") and "secret-place" not in error
    wrong = {"data": {"name": "/etc/passwd-like.csv"}}
    missing = client_nodes(tmp_path / "other", config("fedavg", **SETTINGS))[0]
    object.__setattr__(missing.source, "name", str(tmp_path / "secret-place" / "x.csv"))
    error = refusal(missing, "one", describe(config("fedavg", **SETTINGS).model_dump(mode="json") | wrong))
    assert "\n" not in error and "secret-place" not in error and str(tmp_path) not in error


def test_a_clients_full_disk_is_named_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "save_tensors", full)
    warnings: list[str] = []
    grid = Loopback(client_nodes(tmp_path / "c", config("fedper", **SETTINGS)))
    play_apart(tmp_path / "run", "fedper", warnings, grid, **{**SETTINGS, "train.rounds": 1})
    warning = next(text for text in warnings if "client 0" in text)
    assert "No space left on device" in warning and warning.endswith("make room; until then the run goes on without this client")


def test_a_folder_with_spaces_is_not_sent(tmp_path: Path) -> None:
    node = client_nodes(tmp_path / "Jane Doe" / "c", config("fedavg", **SETTINGS))[0]
    folder = node.folder / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "setup.json").write_text("{")
    error = refusal(node, "run", TRAIN)
    assert error.startswith("a file is damaged") and "Doe" not in error


@pytest.mark.parametrize("place", ["Jane Doe/data", "Doe, Jane's: data", "relative Doe/Jane"])
def test_unreadable_files_of_registered_data_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    data = Path(place) if place.startswith("relative") else tmp_path / place
    (data / "cifar10").mkdir(parents=True)
    for part in ("train", "test"):
        (data / "cifar10" / f"{part}.parquet").write_bytes(b"PAR1 and nothing else")
    monkeypatch.setenv("FEDPRIV_DATA", str(data))
    asked = describe(config("fedavg", **{"data.name": "cifar10"}).model_dump(mode="json"))
    error = refusal(ClientNode(0, Source(), tmp_path / "state"), HANDSHAKE, asked)
    assert error == "a file (more in the client's own log)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read /mnt/Jane Doe/x y.parquet: bad", "cannot read a file (more in the client's own log)"),
        ("/srv/my state/runs/a/setup.json is damaged: empty", "a file is damaged: empty"),
        ("no answer of http://me:pa'ss wo/rd@host", "no answer of an address (more in the client's own log)"),
        ("no data set '/mnt/x', nor another", "no data set a file (more in the client's own log)"),
        ("in ~jane/x", "in a file (more in the client's own log)"),
        ("'org/name' is 1 / 2, and/or statistic.c/w", "'org/name' is 1 / 2, and/or statistic.c/w"),
    ],
)
def test_errors_end_at_a_path(text: str, expected: str) -> None:
    assert _without_paths(text, Path("/srv/my state"), Source()) == expected


@pytest.mark.slow
def test_a_second_message_under_sample_level_dp_is_refused(tmp_path: Path) -> None:
    private = {**SETTINGS, "privacy.level": "sample", "privacy.noise": 4.0, "train.rounds": 1}
    seen: dict[str, Frame] = {}

    class Watching(Loopback):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            if frames[0].head["entries"][-1]["do"] == "train":
                seen["train"] = frames[0]
            yield from super().exchange(frames, seconds, round)

    grid = Watching(client_nodes(tmp_path / "c", config("fedavg", **private)))
    folder = play_apart(tmp_path / "run", "fedavg", grid=grid, **private)
    summary = RunFolder.open(folder).summary()
    assert summary is not None and "secret of each client" in summary["privacy"]["randomness"]
    assert not any("train_loss" in record["metrics"] for record in RunFolder.open(folder).records()), "no noise covers it"
    assert "sample of one client" in summary["privacy"]["adjacency"]
    first, again = (grid.nodes[0].answer(seen["train"]) for _ in range(2))
    assert first.parts == again.parts, "a repeated local update gives the same bytes"
    at = seen["train"].head["entries"][-1]["message"]
    message = unseal(seen["train"].parts[at])
    other = seal(Payload({name: tensor + 1e-6 for name, tensor in message.tensors().items()}, message.round))
    parts = tuple(other.data if place == at else part for place, part in enumerate(seen["train"].parts))
    assert "another message" in grid.nodes[0].answer(replace(seen["train"], parts=parts)).head["error"]


@pytest.mark.slow
def test_dp_refuses_a_report_of_other_than_the_declared_samples(tmp_path: Path) -> None:
    """Rate and steps depend on them: with fewer, one client would spend more than the noise was found for, and end the run."""
    private = {**FOUR, "privacy.level": "sample", "privacy.target_epsilon": 2.0, "train.rounds": 2}

    def spoil(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        if (asked, client) != ("train", 1):
            return [answer]
        entry, parts = answer.entries[-1], list(answer.parts)
        upload = unseal(parts[entry["upload"]])
        report = replace(Report.of(unseal(parts[entry["report"]])), num_examples=1, spent=[(1.0, 1)])
        parts[entry["report"]] = report.seal().data
        draft = Payload(upload.tensors(), upload.round, upload.client, upload.kind, 1, upload.transforms)
        parts[entry["upload"]] = seal(draft).data
        return [replace(answer, parts=tuple(parts))]

    grid = Faulty(tmp_path / "c", spoil, private, "fedavg")
    folder = play_apart(tmp_path / "run", "fedavg", grid=grid, **private)
    samples = grid.nodes[1].data.loaded.data.size(1)  # type: ignore[index]
    refused = [record.get("refused") for record in RunFolder.open(folder).records()[1:]]
    assert refused == [[{"client": 1, "reason": f"it reports 1 samples and declared {samples}"}]] * 2
    summary = RunFolder.open(folder).summary()
    assert summary is not None and 0 < summary["privacy"]["epsilon_per_client"][1] <= 2.0, "its upload was seen nevertheless"


@pytest.mark.parametrize("when", ["before the agreement", "between rounds", "with the loss of its disk"])
def test_a_client_whose_data_have_changed_does_not_train(tmp_path: Path, when: str) -> None:
    """Rate and steps of sample-level DP depend on how many they are, and the server accounts for those that were declared."""
    private = {"privacy.level": "sample", "privacy.noise": 4.0, "model.name": "mlp_lineage", "model.projection": 8}
    own = {"data.limit": None, "data.pixels": "unit", "data.partition.name": "iid", "data.name": str(tmp_path / "photos")}
    settings = {**SETTINGS, **private, **own, "data.clients": 2, "train.rounds": 2}
    for number in range(2):
        write_folder(tmp_path / f"photos-{number}", list(pixels(40, 8, 8)), [0, 1] * 20)

    def clients() -> dict[int, ClientNode]:
        return {
            number: ClientNode(number, Source(str(tmp_path / f"photos-{number}")), tmp_path / f"client-{number}")
            for number in range(2)
        }

    class Shrinking(Loopback):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            asked = frames[0].entries[-1]["do"]
            if (asked, round) == (("agree", 0) if when == "before the agreement" else ("train", 2)):
                for file in sorted((tmp_path / "photos-0").glob("*/*"))[::2]:
                    file.unlink()
                if when == "with the loss of its disk":
                    shutil.rmtree(tmp_path / "client-0" / "runs")
                self.nodes = clients()
            yield from super().exchange(frames, seconds, round)

    expected = r"client 0 declared 32 training and 8 test samples for run run and has 16 and 4 now"
    grid = Shrinking(clients())
    if when == "before the agreement":
        with pytest.raises(FedprivError, match=f"client 0 did not agree to the run: {expected}"):
            play_apart(tmp_path / "run", "fedavg", grid=grid, **settings)
        return
    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "fedavg", warnings, grid, **settings)
    assert any(re.search(expected, text) for text in warnings)
    assert [record.get("missing") for record in metrics(folder)] == [None, None, 1]
    assert not list((folder / "payloads" / "round-0002").glob("client-0000*"))
    summary = RunFolder.open(folder).summary()
    assert summary is not None and summary["privacy"]["epsilon_per_client"][0] >= summary["privacy"]["epsilon_per_client"][1]


@pytest.mark.slow
def test_concurrent_runs_with_secure_aggregation(tmp_path: Path) -> None:
    """The steps of one come between those of the other, and no client loses the upload that it holds."""
    settings = {**SETTINGS, "wire.secure_aggregation": True}
    both = client_nodes(tmp_path / "clients", config("fedavg", **settings))

    class Other(Loopback):
        """Plays a whole run between two steps of another."""

        begun = False

        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            if not self.begun and frames[0].head["entries"][-1]["do"] == "step":
                self.begun = True
                play_apart(tmp_path / "between", "fedavg", grid=Loopback(both), **settings, seed=1)
            yield from super().exchange(frames, seconds, round)

    for folder in (play_apart(tmp_path / "run", "fedavg", grid=Other(both), **settings), tmp_path / "between"):
        assert [record.get("summed") for record in metrics(folder)] == [None, 4, 4, 4]


def test_dp_refuses_a_partition_that_shares_samples(tmp_path: Path) -> None:
    """A simulation composes the spending of all that hold a sample; a server without data cannot know them."""
    private = {**FOUR, "privacy.level": "sample", "privacy.noise": 1.0, "data.partition.name": "class_dir_min1"}
    with pytest.raises(FedprivError, match="class_dir_min1 assigns samples to several clients"):
        play_apart(tmp_path / "run", "fedavg", **private)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "lost"])
def test_the_ledger_books_updates_whose_answers_are_not_used(tmp_path: Path, how: str) -> None:
    """Its upload may have been seen, so it costs what it would have cost in the sum."""
    private = {**FOUR, "privacy.level": "sample", "privacy.noise": 1.0, "train.rounds": 2}
    bound = {"train.max_update_norm": 1e-6} if how == "refused" else {}
    lost = Faulty(tmp_path / "c", lambda asked, round, client, answer: [] if asked == "train" else [answer], private, "fedavg")
    folder = play_apart(tmp_path / "run", "fedavg", grid=lost if how == "lost" else None, **private, **bound)
    usual = play(tmp_path / "whole", "fedavg", **private).summary
    summary, records = RunFolder.open(folder).summary(), RunFolder.open(folder).records()[1:]
    assert [len(record["missing" if how == "lost" else how]) for record in records] == [4, 4]
    assert summary is not None and usual is not None
    assert summary["privacy"]["epsilon_per_client"] == usual["privacy"]["epsilon_per_client"]
    assert summary["privacy"]["epsilon"] == usual["privacy"]["epsilon"] > 1


@pytest.mark.slow
def test_noise_comes_from_a_secret_of_the_client(tmp_path: Path) -> None:
    noisy = {**SETTINGS, "train.rounds": 1, "wire.transforms": [{"name": "gaussian", "variance": 1e-4}]}
    first, second = (play_apart(tmp_path / name, "fedavg", **noisy) for name in ("a", "b"))
    play(tmp_path / "whole", "fedavg", **noisy)
    ups = [hashes(folder, "payloads/round-0001/client-*") for folder in (first, second, tmp_path / "whole")]
    assert len(ups[0]) == 4
    assert not {*ups[0].values()} & {*ups[1].values()} and not {*ups[0].values()} & {*ups[2].values()}
    assert (tmp_path / "a-clients" / "client-0" / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_the_setup_does_not_change(tmp_path: Path) -> None:
    here = client_nodes(tmp_path / "c", config("fedavg", **SETTINGS))
    play_apart(tmp_path / "run", "fedavg", grid=Loopback(here), **SETTINGS)
    terms = json.loads((tmp_path / "c" / "client-0" / "runs" / "run" / "setup.json").read_text())
    warnings: list[str] = []
    changed = {**terms, "config": {**terms["config"], "seed": 7}}
    clients = RemoteClients(Loopback(here), "run", changed, {0: {"train": 50, "test": 50}}, 10, warnings.append)
    assert not clients.agree() and "differs from the one" in warnings[0]


# --- the handshake -----------------------------------------------------------------------------------------------------


class Telling(Loopback):
    """A loopback in which a client declares something else, and trains with what it has."""

    def __init__(self, folder: Path, client: int, facts: dict[str, Any]) -> None:
        super().__init__(client_nodes(folder, config("fedavg", **SETTINGS)))
        self.client, self.facts = client, facts

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        if self.client in frames and (first := frames[self.client].entries[0])["do"] == "agree":
            honest = replace(frames[self.client], head={**frames[self.client].head, "entries": [{**first, "samples": self.has}]})
            frames = {**frames, self.client: honest}
        for client, answer in super().exchange(frames, seconds, round):
            if client == self.client and isinstance(answer, Frame) and "code" in answer.head["entries"][0]:
                self.has = {name: answer.entries[0][name] for name in ("train", "test")}
                answer = Frame({"entries": [{**answer.head["entries"][0], **self.facts}]})
            yield client, answer


DIFFERS: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"code": "0.0.9+abc"}, r"client 2 runs fedpriv 0\.0\.9\+abc, and here is fedpriv 0\.1\.0\+"),
    "long": ({"code": "\x1b[2J" + "A" * 10**5}, r"client 2 runs fedpriv \\x1b\[2JA{150,300} \.\.\. A+, and here is"),
    "clock": ({"time": 0.0}, r"the clock of client 2 is -\d+ s from the server's"),
    "shape": ({"form": {"shape": [3, 32, 32]}}, r"client 2 has samples of images of 3x32x32, client 0 images of 1x8x8"),
    "classes": ({"classes": ["cat", "dog"]}, r"client 2 has the classes 2, with 'cat', client 0 10"),
    "fewer classes": ({"classes": list("012345678")}, r"client 2 has the classes 9, without '9', client 0 10"),
    "a tracker": (
        {"suggests": {"tracking.uri": "http://x"}},
        "client 2 suggests tracking.uri = http://x, which is the operator's",
    ),
    "a bound": ({"suggests": {"train.max_update_norm": 1e-9}}, "client 2 suggests train.max_update_norm = 1e-09, which is"),
    "a hub": ({"suggests": {"model.encoder": "who/ever"}}, "client 2 suggests model.encoder = who/ever, which is the operator's"),
    "a section": ({"suggests": {"data": 1}}, "client 2 suggests data = 1, which is the operator's"),
    "a module": ({"default_model": "this:Net"}, "client 2 suggests the net this:Net, which would have to be imported"),
    "number": ({"client": 1}, r"client 1 answers in place of client 2"),
    "samples": ({"train": -3}, r"client 2 declares -3 samples"),
    "more samples than a float holds": ({"train": 10**400}, r"client 2 declares 10+ \.\.\. 0+ samples, not 0 to 2147483647"),
    "too many test samples": ({"test": 2**31}, r"client 2 declares 2147483648 samples, not 0 to 2147483647"),
    "nonsense": ({"train": "many"}, r"what client 2 declares: train = 'many'"),
}


@pytest.mark.parametrize("what", DIFFERS)
def test_clients_that_differ_are_refused_before_the_first_round(tmp_path: Path, what: str) -> None:
    facts, expected = DIFFERS[what]
    with pytest.raises(UsageError, match=expected):
        play_apart(tmp_path / "run", "fedavg", grid=Telling(tmp_path / "c", 2, facts), **SETTINGS)
    assert not (tmp_path / "run").exists()


LONG: dict[str, dict[str, Any]] = {
    "a net": {"default_model": "\x1b[2J" + "A" * 10**5},
    "classes": {"classes": ["\x1b[2J" + "A" * 10**5, "b"]},
    "a shape": {"form": {"shape": [7] * 10**5}},
    "suggestions": {"suggests": {"train.lr": "A" * 10**5}},
    "a partition": {"partition": "\x1b" * 100},
    "a number": {"client": 10**4000},
}


@pytest.mark.parametrize("what", LONG)
def test_a_declaration_is_shown_as_one_short_line(tmp_path: Path, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        play_apart(tmp_path / "run", "fedavg", grid=Telling(tmp_path / "c", 0, LONG[what]), **SETTINGS)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 800


def test_many_classes_cost_a_server_no_time(tmp_path: Path) -> None:
    facts, began = {"classes": [str(number) for number in range(10, 100_000)]}, time.process_time()
    with pytest.raises(UsageError, match="client 2 has the classes 99990, with '10', client 0 10, with '0'"):
        play_apart(tmp_path / "run", "fedavg", grid=Telling(tmp_path / "c", 2, facts), **SETTINGS)
    assert time.process_time() - began < 20


def test_what_all_clients_suggest_is_checked_as_a_config(tmp_path: Path) -> None:
    class All(Loopback):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            for client, answer in super().exchange(frames, seconds, round):
                assert isinstance(answer, Frame)
                yield client, Frame({"entries": [{**answer.head["entries"][0], "suggests": {"data.max_tokens": "many"}}]})

    with pytest.raises(UsageError, match=r"the clients' data suggest: data\.max_tokens = 'many'"):
        play_apart(tmp_path / "run", "fedavg", grid=All(client_nodes(tmp_path / "c", config("fedavg", **SETTINGS))), **SETTINGS)


@pytest.mark.parametrize(
    ("of", "weights", "named"), [("train", "samples", True), ("train", "uniform", False), ("test", "samples", True)]
)
def test_a_majority_of_all_samples_is_warned_of(tmp_path: Path, of: str, weights: str, named: bool) -> None:
    """Of training samples only where uploads are weighted by them."""
    warnings: list[str] = []
    grid = Telling(tmp_path / "c", 2, {of: 10**9})
    play_apart(tmp_path / "run", "fedavg", warnings, grid, **{**SETTINGS, "method.weights": weights, "train.rounds": 1})
    said = [text for text in warnings if "client 2 declares 1000000000 of all" in text]
    assert len(said) == named and all(f"{'training' if of == 'train' else 'test'} samples" in text for text in said)


def test_a_test_on_undeclared_samples_does_not_count(tmp_path: Path) -> None:
    settings, warnings = {**SETTINGS, "train.rounds": 1}, list[str]()
    grid = Telling(tmp_path / "c", 2, {"test": 10**6})
    record = RunFolder.open(play_apart(tmp_path / "run", "fedavg", warnings, grid, **settings)).records()[1]
    (refused,) = record["untested"]
    assert refused["client"] == 2 and re.fullmatch(r"it reports \d+ test samples and declared 1000000", refused["reason"])
    assert any(f"the test of client 2 is refused: {refused['reason']}" in text for text in warnings)
    tested = [accuracy for accuracy in record["per_client"]["accuracy"] if accuracy is not None]
    assert len(tested) == 3 and record["metrics"]["accuracy"] == pytest.approx(sum(tested) / 3)


def test_clients_of_about_equal_size_cause_no_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    grid = Loopback(client_nodes(tmp_path / "c", config("fedavg", **SETTINGS)))
    play_apart(tmp_path / "run", "fedavg", warnings, grid, **{**SETTINGS, "train.rounds": 1})
    assert warnings == []


def test_a_refusal_is_one_short_line(tmp_path: Path) -> None:
    grid = Faulty(tmp_path / "c", lambda *of: [Frame({"error": "\x1b[2J" + "A\n" * 10**5})])
    with pytest.raises(FedprivError, match="cannot take part") as caught:
        play_apart(tmp_path / "run", "fedavg", grid=grid, **SETTINGS)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_absent_clients_cost_no_bytes_and_are_named(tmp_path: Path) -> None:
    def spoil(asked: str, round: int, client: int, answer: Any) -> list[Any]:
        away = {
            ("train", 2): NotSent(NOT_CONNECTED),
            ("test", 3): NotSent(NOT_CONNECTED),
            ("train", 3): f"{NOT_CONNECTED} any more",
        }
        return [away.get((asked, client), answer)]

    settings = {**FOUR, "train.rounds": 1}
    folder = play_apart(tmp_path / "run", "fedavg", grid=Faulty(tmp_path / "c", spoil, settings, "fedavg"), **settings)
    record = RunFolder.open(folder).records()[1]
    whole = play(tmp_path / "whole", "fedavg", **settings).folder.records()[1]
    assert record["metrics"]["bytes_down"] == whole["metrics"]["bytes_down"] // 4 * 3
    assert record["metrics"]["bytes_down_tests"] == record["metrics"]["bytes_down"]
    assert record["untested"] == [{"client": 3, "reason": NOT_CONNECTED}] and record["metrics"]["untested"] == 1
    assert [refusal["client"] for refusal in record["missing"]] == [2, 3]


def test_a_missing_client_is_named(tmp_path: Path) -> None:
    grid = Faulty(tmp_path / "c", lambda asked, round, client, answer: [] if client == 3 else [answer])
    with pytest.raises(FedprivError, match=r"client 3 has not answered within 60 s \(1 of 4 missing\)"):
        play_apart(tmp_path / "run", "fedavg", grid=grid, **SETTINGS)


def test_a_client_without_its_data_is_named(tmp_path: Path) -> None:
    grid = Loopback(client_nodes(tmp_path / "c", config("fedavg", **SETTINGS)))
    object.__setattr__(grid.nodes[1].source, "name", str(tmp_path / "nothing"))
    with pytest.raises(FedprivError, match="client 1 cannot take part: its data cannot be read"):
        play_apart(tmp_path / "run", "fedavg", grid=grid, **SETTINGS)


def test_handshake_is_no_name_of_a_run(tmp_path: Path) -> None:
    """Else its answers would not be kept for a frame that comes again."""
    with pytest.raises(UsageError, match="handshake is what clients call the time before a run"):
        play_apart(tmp_path / HANDSHAKE, "fedavg", **SETTINGS)
    node = ClientNode(0, Source("digits"), tmp_path / "client")
    frame = Frame({"run": HANDSHAKE, "entries": [{"do": "agree", "samples": {}}]})
    assert node.answer(frame).error == "a run that is called handshake"


def test_a_setup_that_cannot_be_saved_is_not_agreed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client would answer other terms of that name from these, and after its next start not know them."""
    of = client_nodes(tmp_path / "c", config("fedavg", **SETTINGS))
    play_apart(tmp_path / "run", "fedavg", grid=Loopback(of), **{**SETTINGS, "train.rounds": 1})
    kept = tmp_path / "c" / "client-0" / "runs" / "run"
    terms, samples = (load_json(kept / f"{name}.json") for name in ("setup", "samples"))

    def agrees(seed: int) -> Frame:
        changed = {**terms, "config": {**terms["config"], "seed": seed}, "samples": samples, "do": "agree"}
        return of[0].answer(Frame({"run": "other", "entries": [changed]}))

    def full(*_of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.deploy.client.setups.save_json", full)
        assert "No space left" in str(agrees(7).error)
    answers = [agrees(seed) for seed in (8, 7)]
    assert answers[0].error is None and "differs from the one" in str(answers[1].error)
    assert of[0]._run("other").agreement.config.seed == 8


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"eval.probe": "linear"}, "which the server has not"),
        ({"eval.fresh_head": 1}, "trained afresh in simulations"),
        ({"privacy.level": "client", "privacy.noise": 4.0}, "use sample"),
    ],
)
def test_what_a_deployment_cannot_do_is_refused(tmp_path: Path, key: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        play_apart(tmp_path / "run", "fedavg", **SETTINGS, **key)
