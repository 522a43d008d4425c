"""Secure sums whose clients are apart from the server: what a client that is lost, or answers wrongly, changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedpriv.deploy.frames import Frame
from fedpriv.deploy.transport import NOT_CONNECTED, NotSent
from fedpriv.errors import FedprivError
from fedpriv.secure import messages
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import unseal
from tests.deploy.apart import hashes
from tests.marks import slow_but
from tests.secure.lossy import EVERY, ON, UNTRAINED, Apart, Frames, Lossy, lost, metrics
from tests.simulation.small import play, simulation

TIGHT = {**ON, "train.max_update_norm": 1e-3, "train.on_refused": "drop"}


@pytest.fixture
def asked(tmp_path: Path) -> list[int]:
    """The participants of round 1 in runs of MP-FedCon."""
    run = simulation(tmp_path / "again", "mpfedcon", **ON, **{"train.on_nan": "drop"})  # as deployments do
    return sorted(run.participants(1))


def but(clients: list[int], *lost: int) -> list[int]:
    return [client for client in clients if client not in lost]


@pytest.mark.parametrize("method", slow_but([], ["fedavg", "scaffold", "mpfedcon"]))
def test_apart_it_has_the_same_bits(tmp_path: Path, method: str) -> None:
    play(tmp_path / "whole", method, **ON)
    Apart(tmp_path / "apart", method).play()
    state = ("checkpoints/server-*.safetensors", "payloads/*/sum*", "payloads/*/report*", "payloads/*/download*", "weights/*")
    assert hashes(tmp_path / "apart", *state) == hashes(tmp_path / "whole", *state)
    apart, whole = ([numbers["bytes_up"] for numbers in metrics(tmp_path / name)] for name in ("apart", "whole"))
    assert apart == whole


@pytest.mark.parametrize("step", slow_but(["masked"], ["keys", "letters", "masked", "confirmed", "shares"]))
def test_a_client_that_drops_out_is_not_in_the_sum(tmp_path: Path, asked: list[int], step: str) -> None:
    """Whatever step it does not take; after its masked upload, what it sent counts."""
    gone: list[int] = []

    def answers(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step in kinds and round == 1 and not gone:
            gone.append(client)
        return [] if step in kinds and round == 1 and gone == [client] else [answer]

    first, second = Apart(tmp_path / "run").play(answers).summed
    assert gone and first == but(asked, *([] if step in ("confirmed", "shares") else gone))
    assert second is not None and len(second) == 4


@pytest.mark.parametrize("bad", slow_but(["another's"], ["another's", "the same twice"]))
def test_a_client_with_bad_keys_is_not_in_the_sum(tmp_path: Path, asked: list[int], bad: str) -> None:
    """And no other client is named, as would be if the keys were carried to all."""
    rows: dict[int, bytes] = {}

    def answers(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if "keys" not in kinds or round != 1 or len(rows) > 1:
            return [answer]
        at = kinds.index("keys")
        rows[client] = messages.public(messages.own_key(unseal(answer.parts[at]), round, client))
        if len(rows) < 2:
            return [answer]
        wrong = rows[min(rows)] if bad == "another's" else rows[client][: messages.KEY] * 2
        parts = list(answer.parts)
        parts[at] = messages.table("keys", round, client, {client: wrong}).data
        return [replace(answer, parts=tuple(parts))]

    run = Apart(tmp_path / "run").play(answers)
    (first, second), bad_one = run.summed, max(rows)
    assert first == but(asked, bad_one) and second is not None and len(second) == 4
    (warning,) = run.of_rounds()
    assert f"client {bad_one} " in warning and "refused" in warning


@pytest.mark.parametrize("step", ["letters", "shares"])
def test_a_table_with_too_few_rows_costs_no_other_client_its_part(tmp_path: Path, asked: list[int], step: str) -> None:
    """Its sender is named; after its masked upload, what it sent counts."""
    short: list[int] = []

    def answers(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step not in kinds or round != 1 or short:
            return [answer]
        short.append(client)
        rows = messages.rows_of(unseal(answer.parts[0]), kinds[0], round, client)  # type: ignore[arg-type]
        rows.pop(max(rows))
        return [replace(answer, parts=(messages.table(kinds[0], round, client, rows).data,))]  # type: ignore[arg-type]

    run = Apart(tmp_path / "run").play(answers)
    assert run.summed[0] == but(asked, *(short if step == "letters" else []))
    (warning,) = run.of_rounds()
    assert f"what client {short[0]} sent for the sum is refused: its message of kind {step} has no row" in warning


def test_of_fewer_than_min_uploads_no_sum_is_opened(tmp_path: Path) -> None:
    """The next round sends the same model, and the difference of two sums would be an upload of client 4."""
    steps: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}

    def answers(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        steps[round] |= set(kinds)
        return lost([4])(kinds, round, client, answer)

    run = Apart(tmp_path / "run", "fedavg").play(answers, **{**EVERY, "train.min_uploads": 5})
    first = run.records[1]
    assert "masked" in steps[1] and not steps[1] & {"confirmed", "shares"} and {"confirmed", "shares"} <= steps[2]
    assert not first.keys() & {"summed", "opened"} and first["metrics"]["too_few_uploads"] == 1
    assert run.summed[1] == [0, 1, 2, 3, 4]
    assert PayloadStore.of(RunFolder.open(run.folder)).mean(1) is None
    (warning,) = (text for text in run.warnings if "the model stays as it is" in text)
    assert warning.endswith("4 of 5 clients are left for the sum; 5 are needed (train.min_uploads)")


def test_without_a_majority_the_model_stays(tmp_path: Path) -> None:
    run = Apart(tmp_path / "run", "scaffold").play(lost(range(1, 5)))
    assert run.summed[0] is None and metrics(run.folder)[1]["too_few_uploads"] == 1
    assert run.warned("there is no sum, so the model stays as it is")
    store = PayloadStore.of(RunFolder.open(run.folder))
    first, second = (store.download(round) for round in (1, 2))
    assert first is not None and second is not None
    before, after = first.tensors(), second.tensors()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in after)
    # Nor do the local updates count: the server names no state of that round.
    clients, last = load_file(run.folder / "checkpoints" / "server-000002.safetensors")["clients"].tolist()
    assert len(clients) == 4 and set(last) == {2}


class Twice(Lossy):
    """Every frame reaches its client twice."""

    def exchange(self, frames: Frames, seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        list(super().exchange(frames, seconds, round))
        return super().exchange(frames, seconds, round)


def test_frames_that_are_sent_again_change_nothing(tmp_path: Path) -> None:
    run = Apart(tmp_path / "run").play(Twice(tmp_path / "clients"))
    play(tmp_path / "whole", "mpfedcon", **ON)
    assert not run.of_rounds() and hashes(run.folder, "weights/*") == hashes(tmp_path / "whole", "weights/*")


def test_a_client_checks_what_no_server_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``train.max_update_norm`` holds for each upload, and with a sum only its sender can check it. The server, which sets the
    bound, is not told the norm."""
    run = Apart(tmp_path / "run", "fedper")
    with pytest.raises(FedprivError, match=UNTRAINED):
        run.play(**TIGHT)
    record = run.records[1]
    assert run.summed[0] is None
    assert {entry["reason"] for entry in record["missing"]} == {"its upload cannot be summed; the client's own log says why"}
    assert not run.warned("norm") and "over 0.001" in capsys.readouterr().err
    assert not list((tmp_path / "clients").glob("client-*/runs/run/states/client-*"))


def test_a_simulation_keeps_no_state_of_a_client_whose_upload_cannot_be_summed(tmp_path: Path) -> None:
    with pytest.raises(FedprivError, match=UNTRAINED):
        play(tmp_path / "run", "fedper", **TIGHT)
    assert "summed" not in metrics(tmp_path / "run")[1] and not list((tmp_path / "run" / "clients").glob("client-*"))


def test_clients_keep_no_state_of_a_round_without_a_sum(tmp_path: Path) -> None:
    """Their local updates do not count, so no later round goes on from them."""
    run = Apart(tmp_path / "run", "fedper").play(lost(range(1, 5), round=2), **{**EVERY, "train.rounds": 3})
    assert run.summed == [[0, 1, 2, 3, 4], None, [0, 1, 2, 3, 4]]
    states = (tmp_path / "clients").glob("client-*/runs/run/states/client-*")
    assert {int(path.stem.rpartition("-")[2]) for path in states} == {1, 3}  # the checkpoint before the last names the former


class Leaving(Lossy):
    """Client 4 is not connected any more when the letters of round 1 are carried; ``carried``: bytes of what was sent in it."""

    carried = 0

    def exchange(self, frames: Frames, seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        there = dict(frames)
        if round == 1 and 4 in frames and frames[4].entries[-1]["do"] == "step" and unseal(frames[4].parts[-1]).kind == "letters":
            del there[4]
            yield 4, NotSent(NOT_CONNECTED)
        if round == 1:
            last = [frame.parts[-1] for frame in there.values() if frame.entries[-1]["do"] in ("train", "step")]
            self.carried += sum(map(len, last))
        yield from super().exchange(there, seconds, round)


def test_a_step_that_was_not_sent_is_not_counted(tmp_path: Path) -> None:
    grid = Leaving(tmp_path / "clients")
    run = Apart(tmp_path / "run", "fedavg").play(grid, **EVERY)
    assert run.summed[0] == [0, 1, 2, 3] and metrics(run.folder)[1]["bytes_down"] == grid.carried
