"""pfl's federated averaging, recorded by the object that the documentation shows."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedpriv
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.foreign.replay import compare_with_message
from fedpriv.recorder.reader import Recorded
from tests.recorder.loop import samples, small_net

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "pfl.md"
USERS = ("a", "b")
LR, BATCH, ROUNDS = 0.5, 4, 3


def recorder(record: Any) -> Any:
    """The page's object."""
    (code,) = re.findall(r"```python\n(import fedpriv\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = dict[str, Any]()
    exec(code, names)
    return names["Recorder"](record)


class Module(nn.Module):
    """The net as pfl takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}


def trained(folder: Path | None) -> list[bytes]:
    """The bytes of the final parameters of a simulation, recorded if there is a folder."""
    pytest.importorskip("pfl", reason='needs pfl: uv run --with "pfl>=0.6,<0.7" pytest -m "" tests/pfl')
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.manual_seed(0)
    module, users = Module(), itertools.cycle(USERS)
    data = FederatedDataset(lambda user: Dataset(samples(6, ord(user)), user_id=user), lambda: next(users))
    watching = []
    if folder is not None:
        training = {"lr": LR, "local_epochs": 1, "batch_size": BATCH}
        record = fedpriv.recording(folder, classes=3, input_shape=(1, 6, 6), net=small_net, training=training)
        for user in USERS:
            record.truth(user, *samples(6, ord(user)))
        watching = [recorder(record)]
    backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[*watching, WeightByDatapoints()])
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, lambda parameters, lr: torch.optim.SGD(parameters, lr), optimizer)
    params = NNAlgorithmParams(
        central_num_iterations=ROUNDS, evaluation_frequency=10**9, train_cohort_size=len(USERS), val_cohort_size=0
    )
    hyper = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    FederatedAveraging().run(params, backend, model, hyper, callbacks=watching, send_metrics_to_platform=False)
    return [parameter.detach().numpy().tobytes() for parameter in module.parameters()]


def test_a_recorded_simulation_is_the_same_to_the_bit(tmp_path: Path) -> None:
    last = trained(None)
    assert trained(tmp_path) == last
    recorded, record = Recorded(tmp_path), AuditedFolder(tmp_path)
    assert recorded.answered() == [(round, user) for round in range(1, ROUNDS + 1) for user in USERS]
    assert all(compare_with_message(record, round, user).agrees for round in range(1, ROUNDS + 1) for user in range(len(USERS)))
    sent = recorded.tensors(ROUNDS, "a", "down")
    changes = [recorded.tensors(ROUNDS, user, "up") for user in USERS]
    assert sent is not None and changes[0] is not None and changes[1] is not None
    for (name, _), final in zip(small_net().named_parameters(), last, strict=True):
        merged = sent[name] + (changes[0][name] + changes[1][name]) / 2
        assert torch.allclose(merged.flatten(), torch.frombuffer(bytearray(final), dtype=torch.float32), atol=1e-6)
