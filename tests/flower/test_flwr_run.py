"""Apps of Flower's documented form, run by ``flwr run`` in simulation and by SuperLink and SuperNodes, recorded by one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.recorder.reader import Recorded

pytestmark = [pytest.mark.slow, pytest.mark.extra("deploy")]
pytest.importorskip("flwr")

from tests.flower.processes import NODES, Link, documented_app, running_link  # noqa: E402

ROUNDS = 2


@pytest.fixture(scope="module", params=["simulation", "processes"])
def link(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    if request.param == "simulation":
        pytest.importorskip("ray", reason="needs the extra cluster")
    with running_link(tmp_path_factory.mktemp("link"), request.param == "simulation") as running:
        yield running


@pytest.mark.parametrize("numpy_client", [False, True], ids=["messages", "NumPyClient"])
def test_one_line_records_an_app_and_changes_nothing(tmp_path: Path, link: Link, numpy_client: bool) -> None:
    folder = tmp_path / "record"
    mod = (
        f'fedpriv.flower.record("{folder}", classes=10, input_shape=(1, 8, 8), net=Net, '
        'training={"lr": 0.1, "local_epochs": 1, "batch_size": 8})'
    )
    plain = link.run(documented_app(tmp_path / "plain", numpy_client=numpy_client), tmp_path / "plain.pt")
    app = documented_app(tmp_path / "app", numpy_client=numpy_client, mods=mod)
    assert link.run(app, tmp_path / "same.pt") == plain
    record = Recorded(folder)
    assert sorted(record.answered()) == [(round, str(n)) for round in range(1, ROUNDS + 1) for n in range(NODES)]
    assert record.facts.net == "images_app.task:Net" and record.facts.framework.startswith("Flower")
    answers = [record.tensors(ROUNDS, client, "up") for client in record.clients]
    for place, (name, tensor) in enumerate(plain.items()):  # both clients have as many samples
        first, second = (answer[name if name in answer else str(place)].numpy() for answer in answers if answer is not None)
        assert np.allclose((first + second).ravel() / 2, np.frombuffer(tensor, np.float32), atol=1e-6)
    assert {line.num_examples for line in record.lines.values() if line.direction == "up"} == {32}
