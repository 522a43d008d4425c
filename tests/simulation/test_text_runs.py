"""Runs on texts: every role, method and defence works on them as on images, and what is frozen is computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import nn
from torch.nn import functional as F

from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder
from fedpriv.models.text.tiny import tiny_encoder
from fedpriv.seeding import generator
from fedpriv.simulation.inputs import cached_features
from fedpriv.simulation.setup import Federation, build
from fedpriv.simulation.simulation import Simulation
from fedpriv.untrusted.cache import cache_folder
from fedpriv.wire import Sealed
from tests.marks import FEW, quick_first, slow_but
from tests.simulation.faults import played_and_killed
from tests.simulation.small import computed, facts, flags, play, resume, simulation
from tests.simulation.texts_and_pairs import METHODS, texts, write_texts

LORA = {"model.tune": "lora", "model.lora_rank": 2}
HEAD = {"model.tune": "head"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "intents.csv")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedpriv"


def uploads_of(run: Simulation) -> list[Sealed]:
    """Play a run and see what its clients send."""
    up: list[Sealed] = []
    run.taps.append(lambda way, sealed: up.append(sealed) if way == "up" else None)
    run.start()
    list(run.rounds())
    return up


@pytest.mark.slow
@pytest.mark.parametrize(("method", "tune"), [("fedavg", {}), ("fedavg", LORA), ("mpfedcon", HEAD)], ids=["full", "lora", "head"])
def test_killed_and_resumed_it_is_the_run_that_was_not(tmp_path: Path, file: Path, method: str, tune: dict[str, Any]) -> None:
    overrides = texts(file, **tune, **{"train.rounds": 3})
    play(tmp_path / "whole", method, **overrides)
    assert computed(played_and_killed(tmp_path / "run", method, **overrides)) == computed(tmp_path / "whole")


@pytest.mark.parametrize("method", slow_but(FEW, METHODS))
@pytest.mark.parametrize("tune", [{}, LORA, HEAD], ids=["full", "lora", "head"])
def test_a_method_made_for_images(tmp_path: Path, file: Path, method: str, tune: dict[str, Any]) -> None:
    outcome = play(tmp_path / "run", method, **texts(file, **tune))
    assert outcome.summary is not None and outcome.summary["accuracy"] is not None
    losses = [record["metrics"]["train_loss"] for record in outcome.folder.records()[1:]]
    assert len(losses) == 2 and all(0 < loss < 20 for loss in losses)
    assert outcome.summary["bytes_up"] > 0


@pytest.mark.parametrize("tune", quick_first([{}, LORA]), ids=["full", "lora"])
def test_it_learns(tmp_path: Path, file: Path, tune: dict[str, Any]) -> None:
    """A control of all else here: what tells the intents apart is found. LoRA on random layers finds less."""
    options = {"train.optimizer": "adam", "train.lr": 0.01, "train.rounds": 6, "train.local_epochs": 3, "eval.last": 1}
    outcome = play(tmp_path / "run", "fedavg", **texts(file, **tune, **options))
    assert outcome.summary is not None and outcome.summary["accuracy"] > (0.4 if tune else 0.8)


def test_lora_alone_and_what_stands_on_it_cross_the_wire(tmp_path: Path, file: Path) -> None:
    run = simulation(tmp_path / "run", "fedavg", **texts(file, **LORA))
    net, space = run.federation.resident.net, run.federation.resident.space
    constant = {name: parameter.clone() for name, parameter in net.named_parameters() if name not in space}
    up = uploads_of(run)
    names = {name for sealed in up for name in sealed.schema}
    assert {name.split(".")[0] for name in names} == {"encoder", "projector", "head"}
    assert all("lora_" in name for name in names if name.startswith("encoder."))
    numbers = 2 * 2 * (2 * 32 * 2) + (32 * 32 + 32) + (32 * 16 + 16) + (16 * 4 + 4)
    assert {sum(tensor.numel() for tensor in sealed.tensors().values()) for sealed in up} == {numbers}
    assert all(4 * numbers < sealed.nbytes < 4 * numbers + 4000 for sealed in up)
    parameters = dict(net.named_parameters())
    assert constant and all(torch.equal(parameters[name], before) for name, before in constant.items())


@pytest.mark.parametrize(("tune", "roles"), [({}, {"encoder", "projector", "head"}), (HEAD, {"head"})])
def test_what_crosses_the_wire_otherwise(tmp_path: Path, file: Path, tune: dict[str, Any], roles: set[str]) -> None:
    settings = texts(file, **tune)
    run = simulation(tmp_path / "run", "fedavg", **settings, **({"model.projection": None} if tune else {}))
    up = uploads_of(run)
    assert {name.split(".")[0] for sealed in up for name in sealed.schema} == roles
    assert any("word_embeddings" in name for sealed in up for name in sealed.schema) == (not tune)


def test_masked_word_embeddings_stay_where_they_are(tmp_path: Path, file: Path) -> None:
    mask = [{"name": "mask", "names": ["encoder.transformer.embeddings.*"]}]
    run = simulation(tmp_path / "run", "fedavg", **texts(file), **{"wire.transforms": mask})
    before = run.federation.resident.space.unpack(run.federation.initial.clone())
    up = uploads_of(run)
    after = run.federation.resident.space.unpack(run.state.row)
    embeddings = [name for name in before if name.startswith("encoder.transformer.embeddings.")]
    assert len(embeddings) == 5 and up
    assert not any(name in sealed.schema for sealed in up for name in embeddings)
    assert all(torch.equal(before[name], after[name]) for name in embeddings)
    assert not torch.equal(before["head.weight"], after["head.weight"])


# --- differential privacy ---------------------------------------------------------------------------------------------

SAMPLE = {"privacy.level": "sample", "privacy.noise": 4.0}


@pytest.mark.parametrize("tune", slow_but([LORA], [{}, LORA, HEAD]), ids=["full", "lora", "head"])
@pytest.mark.parametrize(
    "level", quick_first([SAMPLE, {"privacy.level": "client", "privacy.noise": 4.0}]), ids=["sample", "client"]
)
def test_private(tmp_path: Path, file: Path, tune: dict[str, Any], level: dict[str, Any]) -> None:
    outcome = play(tmp_path / "run", "fedavg", **texts(file, **tune, **level))
    assert outcome.summary is not None and outcome.summary["privacy"]["epsilon"] > 0


@pytest.mark.parametrize("tune", [LORA, HEAD], ids=["lora", "head"])
def test_ghost_clipping_finds_the_same(tmp_path: Path, file: Path, tune: dict[str, Any]) -> None:
    """Without dropout, whose draws differ; the clipping bites."""
    rows = []
    for clipping in ("per_sample", "ghost"):
        options = {**SAMPLE, "privacy.clipping": clipping, "privacy.clip": 0.1, "privacy.noise": 1e-3, "train.rounds": 1}
        run = simulation(tmp_path / clipping, "fedavg", **texts(file, **tune, **options))
        for module in run.federation.resident.net.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        uploads_of(run)
        rows.append(run.state.row - run.federation.initial)
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-3, atol=1e-6)


def test_ghost_clipping_of_a_whole_encoder_is_refused(tmp_path: Path, file: Path) -> None:
    """Its position embeddings are looked up once for all samples, which Opacus' hooks cannot tell apart."""
    with pytest.raises(UsageError, match=r"privacy\.clipping = ghost: embeddings .* per_sample, or model\.tune = lora or head"):
        play(tmp_path / "run", "fedavg", **texts(file, **SAMPLE, **{"privacy.clipping": "ghost"}))


def test_an_encoder_that_cannot_be_taken_sample_by_sample_is_refused(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.models.text.transformer._takes_full_masks", lambda transformer, pad: False)
    with pytest.raises(UsageError, match=r"cannot take tiny sample by sample, as it has its own masks; use model\.tune = head"):
        play(tmp_path / "run", "fedavg", **texts(file, **SAMPLE))
    assert play(tmp_path / "head", "fedavg", **texts(file, **SAMPLE, **HEAD)).summary is not None


# --- a frozen encoder -------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts are shown to a frozen encoder, call by call; without the few that tell encoders apart."""
    seen: list[int] = []
    real = cached_features.features

    def counted(net: Any, ids: torch.Tensor, chunk: int) -> torch.Tensor:
        if len(ids) > cached_features.FEW:
            seen.append(len(ids))
        return real(net, ids, chunk)

    monkeypatch.setattr(cached_features, "features", counted)
    return seen


def stored(path: Path, seed: int = 0) -> Path:
    """A folder with an encoder, as transformers writes it."""
    tokenizer, config = tiny_encoder(["hello thanks what why how the a of on in it bye"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Encoder("", tokenizer, config, None, "mean").model().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.slow
def test_the_head_is_trained_on_features_that_are_computed_by_hand(tmp_path: Path, file: Path) -> None:
    """One client, plain SGD: a linear layer of torch's and an optimiser of torch's, on what transformers says, to the bit."""
    from transformers import AutoModel, AutoTokenizer

    folder = stored(tmp_path / "encoder")
    options = {"data.clients": 1, "train.participation": 1.0, "model.encoder": str(folder), "model.pooling": "mean"}
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0, "train.rounds": 1, "model.projection": None, "train.lr": 0.05}
    run = simulation(tmp_path / "run", "fedavg", **texts(file, **options, **plain))
    data = run.federation.data.train(0)

    order = run.federation.data.indices("train", 0)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    shown = run.federation.dataset.texts
    assert shown is not None
    with torch.no_grad():
        for place, position in enumerate(order.tolist()):
            tokens = tokenizer(shown[0][position], return_tensors="pt")
            state = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
            torch.testing.assert_close(data.inputs[place], state.mean(1)[0], rtol=1e-5, atol=1e-6)  # type: ignore[index]

    head = nn.Linear(32, 4)
    space, initial = run.federation.resident.space, run.federation.initial
    assert set(space.names) == {"head.weight", "head.bias"}
    with torch.no_grad():
        head.weight.copy_(space.view(initial, "head.weight"))
        head.bias.copy_(space.view(initial, "head.bias"))
    optimiser = torch.optim.SGD(head.parameters(), lr=0.05)
    shuffled = torch.randperm(len(order), generator=generator(run.config.seed, 1, 0, "train", 1, "shuffle"))
    for index in torch.split(shuffled, 8):
        optimiser.zero_grad()
        F.cross_entropy(head(data.inputs[index]), data.labels[index]).backward()  # type: ignore[index]
        optimiser.step()
    uploads_of(run)
    assert torch.equal(space.view(run.state.row, "head.weight"), head.weight)
    assert torch.equal(space.view(run.state.row, "head.bias"), head.bias)


def test_features_are_computed_once(tmp_path: Path, file: Path, cache: Path, calls: list[int]) -> None:
    folder = stored(tmp_path / "encoder")
    options = texts(file, **{"model.encoder": str(folder)})  # whose tune is head, as of every stored one
    play(tmp_path / "one", "fedavg", **options)
    assert sorted(calls) == [24, 96]  # test and training texts, whatever the rounds
    play(tmp_path / "two", "fedavg", **options)
    resumed = play(tmp_path / "three", "fedavg", **options, seed=1)
    assert sorted(calls) == [24, 96] and resumed.summary is not None
    assert computed(tmp_path / "one") == computed(tmp_path / "two")
    assert len(list(cache.glob("features-*"))) == 2


def test_features_are_computed_with_the_threads_of_the_run(
    tmp_path: Path, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the process has; and what one number of threads computed is not another's."""
    seen, real = list[int](), cached_features.features

    def noting(frozen: Any, ids: torch.Tensor, chunk: int) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return real(frozen, ids, chunk)

    monkeypatch.setattr(cached_features, "features", noting)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for threads in (1, 2):
            simulation(tmp_path / f"of {threads}", "fedavg", **texts(file, **HEAD, threads=threads))
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1] * 4 + [2] * 4


def test_another_activation_of_a_text_encoder_is_computed_anew(tmp_path: Path, file: Path, calls: list[int]) -> None:
    """Though its weights are the same."""
    folder = stored(tmp_path / "encoder")
    before = (folder / "config.json").read_text()
    assert '"hidden_act": "gelu"' in before
    for name, config in (("one", before), ("two", before.replace("gelu", "relu")), ("three", before)):
        (folder / "config.json").write_text(config)
        simulation(tmp_path / name, "fedavg", **texts(file, **{"model.encoder": str(folder)}))
    assert len(calls) == 4


@pytest.mark.slow
def test_another_text_encoder_or_pooling_is_computed_anew(tmp_path: Path, file: Path, cache: Path, calls: list[int]) -> None:
    folder = stored(tmp_path / "encoder")
    options = texts(file, **{"model.encoder": str(folder), "train.rounds": 1})
    play(tmp_path / "one", "fedavg", **options)
    play(tmp_path / "pooled", "fedavg", **options, **{"model.pooling": "cls"})
    play(tmp_path / "other", "fedavg", **texts(file, **{"model.encoder": str(stored(tmp_path / "b", 1)), "train.rounds": 1}))
    lines = file.read_text().splitlines()
    changed = tmp_path / "changed.csv"
    changed.write_text("\n".join([lines[0], lines[1].replace(",", " hello,"), *lines[2:]]) + "\n")
    before = len(calls)
    play(tmp_path / "text", "fedavg", **{**options, "data.name": str(changed)})
    assert len(calls) - before == 1 and before == 6  # the split that the changed text is not in is the same
    assert len(list(cache.glob("features-*"))) == 7


def test_a_damaged_cache_is_computed_anew(tmp_path: Path, file: Path, cache: Path, calls: list[int]) -> None:
    options = texts(file, **HEAD)
    play(tmp_path / "one", "fedavg", **options)
    for kept in cache.glob("features-*"):
        kept.write_bytes(kept.read_bytes()[:-9] + b"unlike it")
    play(tmp_path / "two", "fedavg", **options)
    assert len(calls) == 4 and computed(tmp_path / "one") == computed(tmp_path / "two")


def test_a_random_encoder_that_is_frozen_is_the_runs_own(tmp_path: Path, file: Path) -> None:
    """One for training and test texts, by the run's seed and not by what was drawn before."""
    seen = []
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        torch.rand(len(name))
        run = simulation(tmp_path / name, "fedavg", **texts(file, **HEAD), seed=seed, **{"data.partition.seed": 0})
        chunks = list(run.federation.data.chunks("train", 1000)), list(run.federation.data.chunks("test", 1000))
        seen.append([torch.cat(chunk) for chunk in chunks])  # type: ignore[arg-type]
        for kept in cache_folder().glob("features-*"):
            kept.unlink()
    assert all(torch.equal(first, second) for first, second in zip(seen[0], seen[1], strict=True))
    assert not torch.equal(seen[0][0], seen[2][0])
    # Test texts that are made of the same words lie where training texts lie.
    train, test = seen[0]
    assert torch.cdist(test, train).min(1).values.median() < 0.5 * torch.cdist(train, train).median()


# --- what the user hears ----------------------------------------------------------------------------------------------


def on_cutting(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if "were cut to" in note]


def test_a_projector_without_effect_on_frozen_features_is_said(file: Path) -> None:
    def made(**more: Any) -> Federation:
        return build(load_config(None, texts(file, **HEAD, **{"method.name": "fedavg", "model.projector": "linear", **more})))

    without, built = made(), made(**{"model.projection": 4})
    assert any("model.projector has no effect" in remark for remark in without.prepared.notes)
    assert not any("model.projector" in remark for remark in built.prepared.notes)
    assert [type(layer) for layer in built.resident.net.projector.children()] == [nn.Linear]


@pytest.mark.slow
def test_cut_texts_are_counted_and_said(tmp_path: Path, file: Path, fedpriv: Callable[..., Result]) -> None:
    command = [*flags("fedavg", **texts(file, **{"data.max_tokens": 8})), "--run-dir", tmp_path / "run"]
    ended = fedpriv("train", *command)
    assert ended.exit_code == 0, ended.stderr
    (note,) = on_cutting(facts(tmp_path / "run")["notes"])
    dataset = simulation(tmp_path / "other", "fedavg", **texts(file)).federation.dataset
    assert dataset.texts is not None
    long = [sum(len(text.split()) > 6 for text in split) for split in dataset.texts]  # with [CLS] and [SEP]
    assert note == f"{long[0]} training and {long[1]} test texts were cut to 8 tokens" and min(long) > 0
    assert f"fedpriv: {note}" in ended.stderr
    again = play(tmp_path / "again", "fedavg", **texts(file, **{"data.max_tokens": 8})).summary
    assert again is not None and on_cutting(again["notes"]) == [note]


def test_nothing_is_said_where_nothing_was_cut(tmp_path: Path, file: Path) -> None:
    outcome = play(tmp_path / "run", "fedavg", **texts(file))
    assert not on_cutting(facts(tmp_path / "run")["notes"])
    assert outcome.summary is not None and not on_cutting(outcome.summary.get("notes", []))


def test_texts_beyond_the_encoders_length_are_cut(tmp_path: Path, file: Path) -> None:
    long = tmp_path / "long.csv"
    long.write_text(file.read_text() + f"{' '.join(['hello'] * 300)},greet\n" * 5)
    outcome = play(tmp_path / "run", "fedavg", **texts(long, **{"data.max_tokens": 500}))
    assert outcome.folder.config().data.max_tokens == 128
    assert outcome.summary is not None
    (note,) = on_cutting(outcome.summary["notes"])
    assert note.endswith("test texts were cut to 128 tokens") and "5" not in note.split(" ")[4:]


def test_a_folder_of_an_encoder_is_found_from_another_folder(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    play(tmp_path / "run", "fedavg", **texts(file, **{"model.encoder": "./encoder"}))
    (tmp_path / "run" / "summary.json").unlink()  # as if it had been killed at its end
    os.chdir("/")
    assert resume(tmp_path / "run").summary is not None
