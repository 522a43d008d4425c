"""A client's own samples, as the config of a run has them read, partitioned and scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.encoding import Encoding
from fedpriv.data.partitions.partition import Partition, make_partition
from fedpriv.deploy.client.need import check_images, check_net
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.errors import FedprivError, UsageError
from fedpriv.models.net import Net
from fedpriv.simulation.inputs.loading import Loaded, Read, prepared_inputs, read

SEE_LOG = "the client's own log says why"


class PrivateError(FedprivError):
    """An error for the server to read; its cause goes only into the client's own log."""


class OwnData:
    """A client's samples; the last ones that were read, and that became inputs, are cached.

    Args:
        device: the torch device; ``None``: that of the run's config.
        requires: whose bounds on memory hold.

    Attributes:
        loaded: the last inputs.
    """

    def __init__(self, number: int, source: Source, device: str | None, requires: Requires) -> None:
        self.number, self.source = number, source
        self._device, self._requires = device, requires
        self._parts: tuple[str, Read] | None = None
        self._key: object = None
        self.loaded: Loaded | None = None

    def samples(self, parts: Read) -> dict[str, int]:
        """Numbers of training and test samples."""
        partition = parts.partition
        tested = partition.validation if parts.config.eval.split == "validation" else partition.test
        return {"train": len(partition.train[self.number]), "test": len(tested[self.number])}

    def load(self, config: RunConfig, encoding: Encoding | None, classes: tuple[str, ...] = ()) -> Loaded:
        """The samples as inputs of a run's nets.

        Args:
            encoding: by which the samples are scaled and coded; ``None``: they are already.
            classes: of all clients; none: those of the data set.

        Raises:
            UsageError: they do not fit the run, or it needs more memory than this client allows.
        """
        parts = self.read(config)
        key = (self._parts and self._parts[0], encoding, classes)
        if self.loaded is None or self._key != key:
            dataset = parts.dataset.with_classes(classes) if classes else parts.dataset
            if encoding is not None and not dataset.is_encoded:
                dataset = dataset.encoded(encoding, np.asarray(parts.partition.train[self.number]))
            loaded = prepared_inputs(replace(parts, dataset=dataset))
            self.check_net(loaded.prepared.build, parts)
            self._key, self.loaded = key, loaded
        return self.loaded

    def check_net(self, build: Callable[[], Net], parts: Read) -> None:
        """Raise :class:`UsageError` if training a run's net needs more memory than this client allows."""
        texts = parts.dataset.texts is not None
        check_net(build, parts.config, self.samples(parts)["train"], texts, self._requires)

    def read(self, config: RunConfig) -> Read:
        """The samples that a config names.

        Raises:
            PrivateError: they cannot be read; why may quote them.
            UsageError: they cannot be read, or need more memory than this client allows.
        """
        local = {"plugins": (), "run_dir": None, "device": self._device or config.device}
        config = config.model_copy(update={"data": self.source.of_run(config.data), **local})
        if config.data.clients <= self.number:
            raise UsageError(f"the run has {config.data.clients} clients (data.clients), and this is client {self.number}")
        if self._parts is None or self._parts[0] != config.to_yaml():
            partition = None if self.source.share == "partition" else self._own_partition
            check_images(config.data, self._requires)
            try:
                self._parts = config.to_yaml(), read(config, partition, every_column=self.source.share == "own")
            except FedprivError as error:
                if self.source.private:
                    raise PrivateError(
                        f"its data cannot be read as the run's config says; {SEE_LOG}, which may quote them"
                    ) from error
                raise
        return self._parts[1]

    def _own_partition(self, dataset: Dataset, config: RunConfig) -> Partition:
        """The partition in which every sample is this client's, and the other clients have none."""
        train, test = (strata.numpy() for strata in dataset.strata)
        options = config.data.partition.model_copy(update={"name": "iid", "test": "disjoint"})
        alone = config.data.model_copy(update={"clients": 1, "partition": options})
        whole = make_partition(train, test, len(dataset.classes), alone, config.data.partition.seed or 0)
        empty = np.zeros(0, np.int64)

        def assigned(parts: Sequence[Any]) -> list[Any]:
            return [parts[0] if client == self.number else empty for client in range(config.data.clients)]

        return Partition(assigned(whole.train), assigned(whole.validation), assigned(whole.test), None, whole.test_split)


def with_run_choices(run: RunConfig, loaded: RunConfig) -> RunConfig:
    """The config of loaded data, with the run's values for what each client chooses itself, so that the two can be compared."""
    partition = loaded.data.partition.model_copy(update={"column": run.data.partition.column})
    same = {name: getattr(run.data, name) for name in ("name", "dir", "label", "features", "drop")}
    return loaded.with_values("data", **same, partition=partition)
