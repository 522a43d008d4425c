"""Runs on image-text pairs, among clients of which some have no texts and some no images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.agreement import Agreement
from fedpriv.data.pools import Paired
from fedpriv.errors import UsageError
from fedpriv.models.registry import register_model
from fedpriv.samples import Pairs, without
from fedpriv.server import merging
from fedpriv.simulation.finished.final_model import export_model
from fedpriv.simulation.inputs import cached_features
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.wire import STATISTIC, tensor_of
from tests.marks import slow_but
from tests.simulation.faults import played_and_killed
from tests.simulation.small import computed, play, simulation
from tests.simulation.texts_and_pairs import METHODS, narrow_fusion, pairs, pairs_folder
from tests.simulation.trial import user_nets

PRIVATE = {"privacy.level": "sample", "privacy.noise": 4.0}
ALL_PAYLOADS = {"wire.keep_payloads": "all"}
NOBODY_LACKS = {"data.image_only": 0.0, "data.text_only": 0.0}
LEARNS = {"train.optimizer": "adam", "train.lr": 0.03, "train.local_epochs": 3, "train.rounds": 1, "model.projection": None}
WITH_BATCHNORM = {"model.backbone": "resnet9_narrow"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("pairs") / "pairs")


@pytest.fixture(scope="module", autouse=True)
def _narrow() -> Iterator[None]:
    with narrow_fusion():
        yield


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def played(path: Path, method: str, **settings: Any) -> Simulation:
    run = simulation(path, method, **settings)
    run.start()
    list(run.rounds())
    return run


def unused(name: str, lacking: str | None) -> bool:
    """Whether a tensor, or a statistic of one, is of a branch that nothing of the client's goes through."""
    full = tensor_of(name) if name.startswith(STATISTIC) else name
    return lacking is not None and (full or "").startswith(f"encoder.{lacking}.")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_killed_and_resumed_it_is_the_run_that_was_not(tmp_path: Path, folder: Path, method: str) -> None:
    overrides = pairs(folder, **{"train.rounds": 3, "train.participation": 0.6}, **(WITH_BATCHNORM if method == "fedbn" else {}))
    play(tmp_path / "whole", method, **overrides)
    assert computed(played_and_killed(tmp_path / "run", method, **overrides)) == computed(tmp_path / "whole")


@pytest.mark.parametrize("method", slow_but(["mpfedcon"], [*METHODS, "feddyn", "fednova", "feddual", "fedsiam-da", "ditto"]))
def test_no_client_sends_what_it_has_no_data_for(tmp_path: Path, folder: Path, method: str) -> None:
    """Of any method: neither tensors of that branch, nor statistics of them."""
    outcome = play(tmp_path / "run", method, **pairs(folder, **ALL_PAYLOADS, **{"train.rounds": 1}))
    assert outcome.summary is not None and outcome.summary["accuracy"] is not None
    data = simulation(tmp_path / "again", method, **pairs(folder)).federation.data
    kept = PayloadStore.of(outcome.folder)
    lacks = [data.lacking(client) for client in range(5)]
    assert sorted(map(str, lacks)) == ["None", "None", "image", "text", "text"]
    seen = dict.fromkeys(lacks, 0)
    for round in kept.rounds():
        for client in kept.clients(round):
            names = kept.upload(round, client).schema
            assert not any(unused(name, lacks[client]) for name in names)
            for there in {"image", "text"} - {lacks[client]}:
                assert any(name.startswith(f"encoder.{there}.") for name in names)
            seen[lacks[client]] += 1
    assert all(count for count in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "extra"),
    [*((method, {}) for method in ("fedavg", "scaffold", "feddyn", "apfl", "local")), ("fedavg", PRIVATE), ("feddyn", PRIVATE)],
)
def test_a_branch_that_nothing_goes_through_stays_as_it_is(
    tmp_path: Path, folder: Path, method: str, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are decayed, corrected and noised where they learn, and BatchNorm counts what it sees: not here."""
    decay = {"train.weight_decay": 0.1, "train.weight_decay_bias": 0.1, **({} if extra else WITH_BATCHNORM)}
    run = simulation(tmp_path / "run", method, **pairs(folder, **decay, **extra))
    space, seen = run.federation.resident.space, 0
    kind = type(run.federation.method)
    keep = kind.keep

    def looked_at(method: Any, update: Any) -> Any:
        nonlocal seen
        for name in update.unused:
            assert torch.equal(space.view(update.row, name), space.view(update.start, name)), name
        seen += len(update.unused)
        return keep(method, update)

    monkeypatch.setattr(kind, "keep", looked_at)
    run.start()
    list(run.rounds())
    assert seen > 0


def test_a_round_of_clients_without_texts_leaves_the_text_branch(tmp_path: Path, folder: Path) -> None:
    data = simulation(tmp_path / "data", "fedavg", **pairs(folder)).federation.data
    alone = [client for client in range(5) if data.lacking(client) == "text"]
    schedule = {"train.selection": "schedule", "train.schedule": [alone], "train.rounds": 1, "train.participation": None}
    run = played(tmp_path / "run", "fedavg", **pairs(folder, **schedule))
    space = run.federation.resident.space
    for name in space.names:
        same = torch.equal(space.view(run.state.row, name), space.view(run.federation.initial, name))
        assert same == name.startswith("encoder.text."), name


@pytest.mark.slow
def test_where_no_client_lacks_anything_the_option_is_not_there(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit the run of a program without it."""
    play(tmp_path / "with", "scaffold", **pairs(folder, **NOBODY_LACKS))
    play(tmp_path / "lacking", "scaffold", **pairs(folder, **{"data.image_only": 0.2, "data.text_only": 0.0}))
    monkeypatch.setattr(merging, "complete", lambda *anything: None)
    monkeypatch.setattr(Agreement, "unused", lambda self, client: frozenset())
    monkeypatch.setattr("fedpriv.data.federated.without", lambda inputs, modality: inputs)
    play(tmp_path / "without", "scaffold", **pairs(folder, **NOBODY_LACKS))
    assert computed(tmp_path / "with") == computed(tmp_path / "without") != computed(tmp_path / "lacking")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_client_is_scored_on_what_it_has(tmp_path: Path, folder: Path, method: str) -> None:
    run = played(tmp_path / "run", method, **pairs(folder, **LEARNS))
    resident, data = run.federation.resident, run.federation.data
    accuracies = run.progress.record["per_client"]["accuracy"]
    differ = 0
    for client in range(5):
        resident.space.pack(run.federation.method.client_state(run.state.row, run.private(client)), resident.row)
        resident.net.eval()
        index = data.indices("test", client)
        picked = data.pick("test", index)
        assert isinstance(picked.inputs, Pairs)
        shares = []
        for lacking in (None, "image", "text"):
            with torch.no_grad():
                logits = resident.net(without(picked.inputs, lacking)).logits  # type: ignore[arg-type]
            shares.append(float((logits.argmax(1) == picked.labels).double().mean()))
        expected = dict(zip((None, "image", "text"), shares, strict=True))
        assert accuracies[client] == pytest.approx(expected[data.lacking(client)])
        differ += len(set(shares)) > 1
    assert differ  # or it would not matter


def test_the_global_model_on_each_half_alone(tmp_path: Path, folder: Path) -> None:
    run = played(tmp_path / "run", "fedavg", **pairs(folder, **LEARNS))
    metrics, resident = run.progress.record["metrics"], run.federation.resident
    resident.row.copy_(run.state.row)
    resident.net.eval()
    everything = run.federation.data.pick("server", torch.arange(40))
    for name, lacking in (("", None), ("_images_alone", "text"), ("_texts_alone", "image")):
        with torch.no_grad():
            logits = resident.net(without(everything.inputs, lacking)).logits  # type: ignore[arg-type]
        assert metrics[f"global_accuracy{name}"] == pytest.approx(float((logits.argmax(1) == everything.labels).double().mean()))


def test_scaffolds_variates_are_means_over_those_who_have_the_data(tmp_path: Path, folder: Path) -> None:
    """With all clients in each round: of a branch, of those who go through it; of the rest, of all."""
    run = played(tmp_path / "run", "scaffold", **pairs(folder))
    stored = [run.stored(client) or {} for client in range(5)]
    checked = set()
    for name, variate in run.state.memory.items():
        full = str(tensor_of(name))
        have = [client for client in range(5) if not unused(full, run.federation.data.lacking(client))]
        own = [stored[client][f"scaffold.variate/{full}"] for client in have]
        torch.testing.assert_close(variate, torch.stack(own).mean(0), rtol=1e-4, atol=1e-6)
        checked.add(len(have))
    assert checked == {3, 4, 5}


@pytest.mark.slow
def test_a_round_without_images_leaves_their_variates(tmp_path: Path, folder: Path) -> None:
    data = simulation(tmp_path / "look", "scaffold", **pairs(folder)).federation.data
    of_texts = [client for client in range(5) if data.lacking(client) == "image"]
    rounds = {"train.selection": "schedule", "train.schedule": [[0, 1, 2, 3, 4], of_texts, [0, 1, 2, 3, 4]], "train.rounds": 3}
    run = simulation(tmp_path / "run", "scaffold", **pairs(folder, **rounds))
    run.start()
    results = []
    for _ in run.rounds():
        results.append(dict(run.state.memory))
    images = [name for name in results[0] if str(tensor_of(name)).startswith("encoder.image.")]
    assert images and results[1].keys() == results[0].keys()
    for name in images:
        assert torch.equal(results[1][name], results[0][name]), name
    assert any(not torch.equal(results[2][name], results[1][name]) for name in images)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sample", "client"])
def test_private(tmp_path: Path, folder: Path, level: str) -> None:
    outcome = play(tmp_path / "run", "fedavg", **pairs(folder, **{"privacy.level": level, "privacy.noise": 4.0}))
    assert outcome.summary is not None and outcome.summary["privacy"]["epsilon"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["lora", "head"])
def test_a_frozen_backbone_is_asked_once(tmp_path: Path, folder: Path, tune: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = cached_features.computed_once

    def counted(frozen: Any, inputs: Any, device: Any, compute: Any) -> torch.Tensor:
        def counting(count: int | None) -> torch.Tensor:
            features: torch.Tensor = compute(count)
            if count is None:
                seen.append(len(features))
            return features

        return real(frozen, inputs, device, counting)

    monkeypatch.setattr(cached_features, "computed_once", counted)
    options = pairs(folder, **WITH_BATCHNORM, **{"model.tune": tune})
    for name in ("one", "two"):
        play(tmp_path / name, "fedavg", **options)
        assert sorted(seen) == ([40, 80] if tune == "lora" else [40, 40, 80, 80])
    assert computed(tmp_path / "one") == computed(tmp_path / "two")
    run = simulation(tmp_path / "three", "fedavg", **options)
    names = run.federation.resident.space.names
    assert "encoder.image.fc.weight" in names and not any(name.startswith("encoder.image.encoder.") for name in names)
    assert all("lora_" in name for name in names if name.startswith("encoder.text.encoder."))
    pool = run.federation.prepared.train
    assert isinstance(pool, Paired)
    first = pool.pick(slice(0, 2)).image
    assert first is not None and first.shape == (2, 64)


@pytest.mark.slow
def test_photographs_are_changed_and_their_texts_are_not(tmp_path: Path, folder: Path) -> None:
    plain, changed = (
        played(tmp_path / name, "fedavg", **pairs(folder, **{"data.augment": name, "data.text_only": 0.4}))
        for name in ("none", "flip_jitter_rotate")
    )
    space = plain.federation.resident.space
    texts_alone = [client for client in range(5) if plain.federation.data.lacking(client) == "image"]
    assert len(texts_alone) == 2 and not torch.equal(plain.state.row, changed.state.row)
    first, second = (
        played(
            tmp_path / f"{name} texts",
            "fedavg",
            **pairs(
                folder,
                **{
                    "data.augment": name,
                    "data.text_only": 0.4,
                    "train.selection": "schedule",
                    "train.schedule": [texts_alone] * 2,
                    "train.participation": None,
                },
            ),
        )
        for name in ("none", "flip_jitter_rotate")
    )
    assert torch.equal(first.state.row, second.state.row) and space.size == len(first.state.row)


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["lora", "head"])
def test_ghost_clipping_finds_the_same(tmp_path: Path, folder: Path, tune: str) -> None:
    """Clients may lack either modality; without dropout, whose draws differ; the clipping bites."""
    rows = []
    for clipping in ("per_sample", "ghost"):
        options = {**PRIVATE, "privacy.clipping": clipping, "privacy.clip": 0.1, "privacy.noise": 1e-3, "train.rounds": 1}
        run = simulation(tmp_path / clipping, "fedavg", **pairs(folder, **options, **{"model.tune": tune}))
        for module in run.federation.resident.net.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        run.start()
        list(run.rounds())
        rows.append(run.state.row - run.federation.initial)
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-3, atol=1e-6)


class Calls(nn.Module):
    """An image encoder whose outputs depend on how often it was called."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(width, 8), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.fc(images.flatten(1)) / self.calls


def test_an_image_encoder_whose_state_no_row_has_is_refused(tmp_path: Path, folder: Path) -> None:
    with user_nets():
        register_model("calls", input_shape=(3, 16, 16), classes=4, source="test")(lambda shape: (Calls(math.prod(shape)), 8))
        with pytest.raises(UsageError, match=r"^encoder\.image\.encoder\.calls: the net's forward pass changes it"):
            simulation(tmp_path / "run", "fedavg", **pairs(folder, **{"model.backbone": "calls"}))


class Squared(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.power = nn.Linear(width, 8), 2

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.fc(images.flatten(1)) ** self.power
        return features


def test_another_code_of_a_frozen_backbone_is_computed_anew(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its layers and weights are the same."""
    seen = []
    with user_nets():
        register_model("own", input_shape=(3, 16, 16), classes=4, source="test")(lambda shape: (Squared(math.prod(shape)), 8))
        for name in ("before", "again", "after"):
            if name == "after":
                monkeypatch.setattr(Squared, "forward", lambda self, images: self.fc(images.flatten(1)))
            run = simulation(tmp_path / name, "fedavg", **pairs(folder, **{"model.backbone": "own", "model.tune": "head"}))
            inputs = next(run.federation.data.chunks("train", 80))
            assert isinstance(inputs, Pairs) and inputs.image is not None
            seen.append(inputs.image)
    assert torch.equal(seen[0], seen[1]) and float(seen[0].min()) >= 0 > float(seen[2].min())


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["full", "head"])
def test_the_logged_model_takes_pairs_whatever_the_first_client_has(tmp_path: Path, folder: Path, tune: str) -> None:
    run = simulation(
        tmp_path / "run", "fedavg", **pairs(folder, **{"data.image_only": 1.0, "data.text_only": 0.0, "model.tune": tune})
    )
    warnings: list[str] = []
    description = export_model(run, warnings.append, tmp_path / "weights")
    assert not warnings and description["inputs"].keys() == {"image", "text"}
    assert (
        ("mean" in description)
        == ("std" in description)
        == (len(description["inputs"]["image"]["shape"]) == 3)
        == (tune == "full")
    )
    program = torch.export.load(tmp_path / "weights" / "server.pt2").module()
    inputs = next(run.federation.data.chunks("train", 3))
    run.federation.resident.row.copy_(run.state.row)
    assert isinstance(inputs, Pairs)
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), run.federation.resident.net.eval()(inputs).logits)
