"""Which models a run has: the server's, and each client's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedpriv
from fedpriv.data.sources import load_data
from fedpriv.methods import registry
from tests.notes import no_notes, noted
from tests.prediction.conftest import Train

DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "clients": 3,
    "rounds": 2,
    "local_epochs": 1,
    "lr": 0.05,
    "data": {"limit": 150, "test_limit": 90},
}


def client_accuracy(run: fedpriv.Run, client: int) -> float:
    """Of a client's model on its own test samples."""
    from fedpriv.simulation.reopening import reopened

    data = reopened(run.folder).data
    index, weights = data.indices("test", client), data.weights("test", client)
    images = (data.dataset.train_images if data.partition.test_split == "train" else data.dataset.test_images)[index]
    right = run.predict(images, client=client).prediction.astype(int).to_numpy() == data.labels("test")[index].numpy()
    weight = torch.ones(len(right)) if weights is None else weights
    return float((torch.from_numpy(right).double() * weight).sum() / weight.sum())


PERSONAL = ["fedper", "fedrep", "mpfedcon", "fedbn", "ditto", "apfl", "local", "feddual", "fedprox"]


@pytest.mark.slow
@pytest.mark.parametrize("method", PERSONAL)
def test_a_client_s_model_is_the_one_that_it_was_tested_with(method: str, train: Train) -> None:
    run = train(method=method, **DIGITS)
    reported = run.records[-1]["per_client"]["accuracy"]
    assert [client_accuracy(run, client) for client in range(3)] == pytest.approx(reported, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pooled", "apfl", "feddyn"])
def test_the_server_s_model_is_the_one_that_was_tested(method: str, train: Train) -> None:
    run = train(method=method, **DIGITS)
    dataset = load_data(run.config.data)
    right = run.predict(dataset.test_images).prediction.astype(int).to_numpy() == dataset.test_labels.numpy()
    assert run.summary is not None and right.mean() == run.summary["protocols"]["global_test_final"]
    if method == "pooled":
        assert run.predict(dataset.test_images, client=2).equals(run.predict(dataset.test_images))


def test_a_method_without_a_whole_global_model_says_which_client_s_to_take(personal: fedpriv.Run, table: Path) -> None:
    with pytest.raises(
        fedpriv.UsageError, match=r"under fedper each client has its own projector, head, .*client=0 to client=2 give"
    ):
        personal.model()
    for client in (3, -1, "D", True):
        with pytest.raises(
            fedpriv.UsageError, match=rf"there is no client {client!r}; the clients are 0 to 2, or a name: A, B, C"
        ):
            personal.model(client=client)


def test_a_private_state_that_is_gone_is_named(train: Train) -> None:
    run = train(method="fedper", **DIGITS)
    assert run.model(client=1)(run.inputs(load_data(run.config.data).test_images[:2])).shape == (2, 10)
    for file in run.folder.clients.glob("client-000001-*"):
        file.unlink()
    with pytest.raises(fedpriv.FedprivError, match="the model of client 1 needs its private state, which cannot be read"):
        run.model(client=1)
    facts = run.folder.facts
    run.folder.update_facts(deployed={"own_data": True})
    with pytest.raises(fedpriv.UsageError, match="client 1 has its own projector, head, which is on the client's machine alone"):
        run.model(client=1)
    run.folder.update_facts(**facts)


def test_adaptation_is_said(train: Train) -> None:
    run = train(method="fedavg-ft", **DIGITS)
    with noted(r"fedavg-ft trains a copy of the model on the client's data before each test \(10 epochs\)"):
        adapted = run.model(client=0)
    with no_notes():
        server = run.model()
    assert all(torch.equal(a, b) for a, b in zip(adapted.state_dict().values(), server.state_dict().values(), strict=True))


def test_what_is_no_whole_model_is_refused(train: Train) -> None:
    masked = train(method="fedavg", **DIGITS, wire={"transforms": [{"name": "mask", "last": 1}]})
    for client in (None, 0):
        with pytest.raises(fedpriv.UsageError, match=r"has no whole model: a mask keeps head\.\w+ from every message"):
            masked.model(client)
    without_labels = train(method="fedavg", objective="simclr", **{**DIGITS, "rounds": 1, "model": "mlp"})
    with pytest.raises(fedpriv.UsageError, match="has no classifier: objective simclr learns without labels"):
        without_labels.predict(load_data(without_labels.config.data).test_images)


def test_a_run_that_is_not_finished_has_no_model(train: Train, tmp_path: Path) -> None:
    with fedpriv.rounds(method="fedavg", runs_dir=tmp_path, tracking_uri="none", **DIGITS) as rounds:
        next(iter(rounds))
    with pytest.raises(fedpriv.UsageError, match=r"is not finished; `fedpriv resume .*` finishes it"):
        rounds.run.model()


def test_a_damaged_or_foreign_preprocessing_is_refused(train: Train) -> None:
    run = train(method="fedavg", **DIGITS)
    file = run.folder.preprocessing_file
    content = file.read_text()
    for changed, message in (
        (content.replace('"mean"', '"Mean"'), "checksum does not match"),
        ('{"classes": ["a"], "columns": 3}', "columns"),
        ("", "damaged or missing"),
    ):
        file.write_text(changed)
        with pytest.raises(fedpriv.FedprivError, match=message):
            run.model()
    file.unlink()
    with pytest.raises(fedpriv.UsageError, match=r"does not keep how its samples were prepared \(no preprocessing\.json\)"):
        run.model()


def test_every_personal_method_is_among_those_tested() -> None:
    """A method with another test of its own would need a test of its model."""
    from fedpriv.methods.base import Method

    own = {
        name
        for name, method in registry.all().items()
        if method.__module__.startswith("fedpriv.") and method.client_state is not Method.client_state
    }
    assert own and own <= set(PERSONAL)


def test_weights_are_the_run_s_and_the_model_is_in_evaluation_mode(train: Train) -> None:
    run = train(method="fedavg", **DIGITS)
    model, weights = run.model(), run.weights()
    state = {name.removeprefix("net."): tensor for name, tensor in model.state_dict().items()}
    assert weights.keys() <= state.keys() and all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    assert not any(module.training for module in model.modules())
