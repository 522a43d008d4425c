"""Linear probes of the server's encoder during a run."""

from __future__ import annotations

from torch import Tensor

from fedpriv.client.resident import Resident
from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.errors import UsageError
from fedpriv.evaluation.linear_probe import probe, samples
from fedpriv.methods.base import Method

PROBE, AS_IS = "probe/", "probe_as_is/"
"""Prefixes of metrics, followed by the share of the labels: with re-estimated and with unchanged BatchNorm statistics."""


def check_probe(config: RunConfig, method: Method) -> None:
    """Check that the run can be probed.

    Raises:
        UsageError: the server has not the whole encoder, or the run is evaluated on validation data.
    """
    require_encoder(method)
    if config.eval.split == "validation":
        raise UsageError("eval.probe is scored on the test set; it does not go with eval.split=validation")


def require_encoder(method: Method) -> None:
    """Raise :class:`UsageError` if parts of the encoder stay with the clients."""
    private = [name for name in method.context.space.select(["encoder"]) if name not in set(method.server_names)]
    if private:
        raise UsageError(
            f"a probe needs the whole encoder at the server, but method {method.name} leaves {private[0]} with the clients"
        )


class Prober:
    """Probes the server's encoder on the run's data set."""

    def __init__(self, resident: Resident, dataset: Dataset, config: RunConfig) -> None:
        self.resident, self.dataset, self.config = resident, dataset, config

    def __call__(self, row: Tensor) -> dict[str, float]:
        """Metrics of the model ``(p,)``: accuracies in [0, 1] on the test set, by name."""
        self.resident.row.copy_(row)
        train, test = samples(self.dataset, self.dataset.input_shape, self.resident.device)
        metrics = {}
        fractions, classes = self.config.eval.probe_fractions, len(self.dataset.classes)
        for result in probe(self.resident.net.encoder, train, test, classes, fractions, self.config.seed, logistic=False):
            metrics[f"{PROBE}{result.fraction:g}"] = result.accuracy
            if result.accuracy_as_is is not None:
                metrics[f"{AS_IS}{result.fraction:g}"] = result.accuracy_as_is
        return metrics
