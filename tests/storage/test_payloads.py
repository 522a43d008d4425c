"""A run keeps what crossed its wire, as much of it as was asked for, and computes the same whatever it keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.storage.payloads import PayloadStore, rounds_to_keep
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.sending import ARTIFACTS
from fedpriv.wire import Sealed
from tests.simulation.small import computed, config, damage, flags, play, renew_checksums, resume, simulation

ALL = {"wire.keep_payloads": "all"}
MASK = {"wire.transforms": [{"name": "mask", "roles": ["head"]}]}
PRIVATE = {"privacy.level": "client", "privacy.noise": 1.0, "seed": 3}

Crossed = dict[tuple[int, int | None, bool], Sealed]


def play_tapped(folder: Path, method: str, **overrides: Any) -> tuple[PayloadStore, Crossed]:
    """What the run kept, and what a tap of our own saw cross: (round, client or none, is it a report) -> message."""
    played, crossed = simulation(folder, method, **overrides), Crossed()
    played.taps.append(lambda way, sealed: crossed.__setitem__((sealed.round, sealed.client, way == "report"), sealed))
    played.start()
    for _ in played.rounds():
        pass
    return PayloadStore.of(RunFolder(folder)), crossed


def kept(store: PayloadStore) -> Crossed:
    held = [(round, client) for round in store.rounds() for client in store.clients(round)]
    messages: Crossed = {(*update, False): store.upload(*update) for update in held}
    messages |= {(*update, True): report for update in held if (report := store.report(*update)) is not None}
    down = {round: store.download(round) for round in store.rounds()} | {0: store.broadcast()}
    return messages | {(round, None, False): sealed for round, sealed in down.items() if sealed is not None}


@pytest.mark.parametrize(
    ("method", "overrides"),
    [("mpfedcon", {}), ("fedavg", MASK), ("fedavg", PRIVATE), ("fedrep", {"wire.transforms": [{"name": "cast"}]})],
    ids=["mpfedcon", "masked", "private", "cast"],
)
def test_what_is_kept_is_what_crossed(tmp_path: Path, method: str, overrides: dict[str, Any]) -> None:
    """Under client-level DP, too: the server's noise comes after the wire."""
    store, crossed = play_tapped(tmp_path / "run", method, **ALL, **overrides)
    assert len({round for round, client, _ in crossed if client is not None}) == 3
    messages = kept(store)
    assert messages == crossed  # data and facts
    assert {key: sealed.digest for key, sealed in messages.items()} == {key: sealed.digest for key, sealed in crossed.items()}
    assert store.nbytes == sum(len(sealed.data) for sealed in crossed.values())
    assert all(len(file.read_bytes()) == file.stat().st_size for file in store.files()) and len(store.files()) == len(crossed)


def test_what_was_masked_is_not_kept(tmp_path: Path) -> None:
    store, _ = play_tapped(tmp_path / "run", "fedavg", **ALL, **MASK)
    heads = {way: [name for name in sealed.schema if name.startswith("head")] for way, sealed in kept(store).items()}
    assert all(bool(names) == (client is None) for (_, client, report), names in heads.items() if not report)
    assert not any(b"head." in store.upload(1, client).data for client in store.clients(1))


@pytest.mark.parametrize(("rounds", "expected"), [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (6, {1, 3, 6}), (7, {1, 4, 7})])
def test_first_middle_and_last(rounds: int, expected: set[int]) -> None:
    assert set(rounds_to_keep(config("fedavg", **{"train.rounds": rounds}))) == expected


@pytest.mark.slow
def test_the_default_keeps_three_clients_of_three_rounds(tmp_path: Path) -> None:
    store, crossed = play_tapped(tmp_path / "run", "mpfedcon", **{"train.rounds": 5, "train.participation": 0.5})
    assert store.rounds() == [1, 3, 5]
    for round in store.rounds():
        participants = [client for number, client, report in crossed if number == round and client is not None and not report]
        assert len(participants) == 5 and store.clients(round) == sorted(participants[:3])
        assert store.download(round) == crossed[round, None, False]
    assert store.broadcast() == crossed[0, None, False]
    assert len(store.files()) == 3 * (2 * 3 + 1) + 1
    assert store.download(2) is None


@pytest.mark.parametrize("asked", [[2], "2", 2])
def test_rounds_keep_all_their_participants(tmp_path: Path, asked: object) -> None:
    store, crossed = play_tapped(tmp_path / "run", "fedrep", **{"train.participation": 0.5, "wire.keep_payloads": asked})
    assert set(kept(store)) == {key for key in crossed if key[0] in (0, 2)}
    assert len(store.clients(2)) == 5


def test_a_method_that_does_not_communicate_has_reports_alone(tmp_path: Path) -> None:
    play(tmp_path / "run", "local", **ALL)
    store = PayloadStore.of(RunFolder(tmp_path / "run"))
    assert store.rounds() == [] and store.broadcast() is None
    assert len(store.files()) == 9 and {path.name.partition("-")[0] for path in store.files()} == {"report"}


def test_nothing_is_kept(tmp_path: Path) -> None:
    outcome = play(tmp_path / "run", "fedavg", **{"wire.keep_payloads": "none"})
    assert not (tmp_path / "run" / "payloads").exists()
    assert outcome.summary is not None and outcome.summary["payloads"] == {"bytes": 0, "files": 0}
    store = PayloadStore.of(RunFolder(tmp_path / "run"))
    assert (store.rounds(), store.clients(1), store.broadcast(), store.download(1), store.nbytes) == ([], [], None, None, 0)
    with pytest.raises(UsageError, match=r"kept no uploads; .*--keep-payloads"):
        store.upload(1, 0)


def test_what_was_not_kept_is_said(reference: Callable[..., Path]) -> None:
    store = PayloadStore.of(RunFolder(reference("mpfedcon", **{"train.rounds": 5})))
    with pytest.raises(UsageError, match=r"no uploads of round 2, but of rounds 1, 3, 5$"):
        store.upload(2, 0)
    clients = store.clients(3)
    other = next(client for client in range(10) if client not in clients)
    with pytest.raises(UsageError, match=rf"client {other} in round 3, but of clients {', '.join(map(str, clients))}$"):
        store.upload(3, other)


def test_the_numbers_do_not_depend_on_what_is_kept(tmp_path: Path, reference: Callable[..., Path]) -> None:
    usual, more = reference("mpfedcon"), tmp_path / "more"
    play(more, "mpfedcon", **ALL)
    assert RunFolder(usual).config().fingerprint() == RunFolder(more).config().fingerprint()
    assert config("fedavg").fingerprint() == config("fedavg", **{"wire.keep_payloads": [1]}).fingerprint()
    assert config("fedavg", **MASK).fingerprint() == config("fedavg", **MASK, **ALL).fingerprint()
    assert config("fedavg").fingerprint() != config("fedavg", **MASK).fingerprint()

    def numbers(folder: Path) -> dict[str, Any]:
        results = {name: value for name, value in computed(folder).items() if not name.startswith("payloads/")}
        return {**results, "summary": {name: value for name, value in results["summary"].items() if name != "payloads"}}

    assert numbers(more) == numbers(usual)


def test_a_resumed_run_may_be_told_to_keep_more(halfway: Path) -> None:
    file = halfway / "config.yaml"
    file.write_text(file.read_text().replace("keep_payloads: default", "keep_payloads: all"))
    resume(halfway)
    assert PayloadStore.of(RunFolder(halfway)).rounds() == [1, 3, 4, 5]


def test_a_round_that_was_never_committed_does_not_stop_its_run(halfway: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt ends at its checkpoint; the second, on another machine, writes other bytes, and ends at its merge."""
    file, fourth = halfway / "config.yaml", halfway / "payloads" / "round-0004"
    file.write_text(file.read_text().replace("keep_payloads: default", "keep_payloads: all"))

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    for end in ("fedpriv.storage.checkpoints.Checkpoints.commit", "fedpriv.server.next_state.Merger.next"):
        with monkeypatch.context() as patched:
            patched.setattr(end, ends)
            with pytest.raises(KeyboardInterrupt):
                resume(halfway)
        assert (fourth / "SHA256SUMS").exists() == end.endswith("commit")
        damage(sorted(fourth.glob("client-*"))[0], "flipped")
    resume(halfway)
    store = PayloadStore.of(RunFolder(halfway))
    store.verify()
    assert store.rounds() == [1, 3, 4, 5]


def test_the_end_of_a_run_says_what_it_takes(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    result = fedpriv("train", *flags("fedrep", **{"train.rounds": 1}), "--keep-payloads", "1", "--run-dir", tmp_path / "run")
    assert result.exit_code == 0, result.output
    sizes = [path.stat().st_size for path in (tmp_path / "run" / "payloads").rglob("*.safetensors")]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["payloads"] == {"bytes": sum(sizes), "files": 8} and len(sizes) == 8
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("messages kept")]
    assert f"{sum(sizes) / 1e3:.1f} kB in 8 files" in line


def test_no_payload_goes_to_mlflow(reference: Callable[..., Path]) -> None:
    folder = reference("mpfedcon")
    sent = {path for pattern in ARTIFACTS for path in folder.glob(pattern)}
    assert folder / "summary.json" in sent
    assert not sent & set((folder / "payloads").rglob("*"))


def test_files_with_other_names_are_ignored(tmp_path: Path, reference: Callable[..., Path]) -> None:
    run = Path(shutil.copytree(reference("mpfedcon"), tmp_path / "run"))
    store = PayloadStore.of(RunFolder(run))
    before = kept(store)
    folder, upload = run / "payloads" / "round-0001", next((run / "payloads" / "round-0001").glob("client-*"))
    strange = ["client-abc", "client-1", "client-00001", "client-\u0661\u0661\u0661\u0661", f"{upload.stem} (1)", "report-"]
    for name in (*(f"{stem}.safetensors" for stem in strange), f"{upload.name}.part", "notes.txt"):
        (folder / name).write_bytes(upload.read_bytes())
    for name in ("round-1x", "round-", "round-001", "round-99999999999", "other"):
        (run / "payloads" / name).mkdir()
    (run / "payloads" / "round-0009").write_text("a file")
    again = PayloadStore.of(RunFolder(run))
    again.verify()
    assert kept(again) == before


@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "removed"])
@pytest.mark.parametrize("name", ["client-*", "report-*", "download*", "SHA256SUMS", ""])
def test_every_kept_message_has_a_checksum(tmp_path: Path, reference: Callable[..., Path], name: str, how: str) -> None:
    run = Path(shutil.copytree(reference("mpfedcon"), tmp_path / "run"))
    file = sorted(run.glob(f"payloads/round-0002/{name}" if name else "payloads/round-0000/broadcast*"))[0]
    damage(file, how)
    with pytest.raises(Damaged, match=file.name) as caught:
        PayloadStore.of(RunFolder(run)).verify()
    assert len(str(caught.value).splitlines()) == 1


def test_the_list_of_what_was_kept_is_in_the_form_of_sha256sum(reference: Callable[..., Path]) -> None:
    for file in sorted((reference("mpfedcon") / "payloads").glob("*/SHA256SUMS")):
        listed = dict(reversed(line.split("  ")) for line in file.read_text().splitlines())
        assert listed == {path.name: sha256(path.read_bytes()).hexdigest() for path in file.parent.glob("*.safetensors")}


@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("how", ["torn", "empty", "foreign", "another client's", "another round's", "the way down", "a folder"])
def test_a_damaged_file_is_named(tmp_path: Path, reference: Callable[..., Path], how: str, forged: bool) -> None:
    """Also if its checksum was made to match."""
    run = Path(shutil.copytree(reference("mpfedcon"), tmp_path / "run"))
    store = PayloadStore.of(RunFolder(run))
    assert len(store.sums) == 4
    client, other = store.clients(2)[:2]
    folder = run / "payloads" / "round-0002"
    file = folder / f"client-{client:04d}.safetensors"
    sources = {
        "another client's": folder / f"client-{other:04d}.safetensors",
        "another round's": run / "payloads" / "round-0003" / f"client-{store.clients(3)[0]:04d}.safetensors",
        "the way down": folder / "download.safetensors",
        "foreign": reference("mpfedcon") / "weights" / "server.safetensors",
    }
    data = sources[how].read_bytes() if how in sources else file.read_bytes()
    file.unlink()
    if how == "a folder":
        file.mkdir()
    else:
        file.write_bytes({"torn": data[: len(data) * 2 // 3], "empty": b""}.get(how, data))
        if forged:
            renew_checksums(run)
            store = PayloadStore.of(RunFolder(run))
    with pytest.raises(Damaged, match=file.name) as caught:
        store.upload(2, client)
    assert len(str(caught.value).splitlines()) == 1
    store.upload(2, other)
