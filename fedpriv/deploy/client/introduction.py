"""What a client says of its data before it has agreed to a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedpriv.client.statistics import Respondent
from fedpriv.config import RunConfig
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.deploy.client.own_data import SEE_LOG, OwnData, PrivateError
from fedpriv.deploy.client.requires import Protection
from fedpriv.deploy.facts import HANDSHAKE, Facts
from fedpriv.deploy.versions import code_version
from fedpriv.errors import UsageError
from fedpriv.noise_source import SecretSource
from fedpriv.server.statistics import counted_classes, statistics_noise
from fedpriv.simulation.inputs.loading import lacking_modalities
from fedpriv.simulation.inputs.statistics import private_statistics
from fedpriv.simulation.inputs.suits import check_suits, holds
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.wire import Sealed


class Introduction:
    """Declares a client's data, and answers questions for statistics of them.

    Args:
        secret: name -> a secret of the client (32 bytes).
        sums: file of what statistics were masked with.
    """

    def __init__(self, data: OwnData, secret: Callable[[str], bytes], sums: Path) -> None:
        self._data, self._secret, self._sums = data, secret, sums
        self._respondent: tuple[str, Respondent] | None = None
        """By the config of a run that it is asked for."""

    def describe(self, config: RunConfig, covered: Protection | None = None) -> Facts:
        """What the server must know about the data.

        Args:
            covered: as of :class:`~fedpriv.deploy.facts.Facts`.

        Raises:
            UsageError: they cannot be read as the config says, or the run needs more memory than this client allows.
        """
        data = self._data
        parts = data.read(config)
        dataset, partition = parts.dataset, parts.partition
        check_suits(parts.config, holds(dataset), "this client")
        kind = None if dataset.is_encoded else dataset.kind
        if kind is not None or counted_classes(config, kind, len(dataset.classes)):
            self._check_limit(config)
        encoder = data.load(config, None).prepared.encoder if dataset.is_encoded else None
        form = SampleForm.of(dataset, encoder)
        if encoder is None and form.shape is not None:
            data.check_net(form.net(parts.config, len(dataset.classes))[1], parts)
        if config.privacy.level == "sample" and any(len(clients) > 1 for clients in partition.holders()):
            raise UsageError(
                f"privacy.level sample: partition {parts.config.data.partition.name} assigns samples to several clients, and "
                "the server, which has no data, would count each client's spending alone; use another partition, such as iid"
            )
        return Facts(
            data.number,
            code_version(),
            time.time(),
            form,
            dataset.classes,
            **data.samples(parts),
            default_model=dataset.default_model,
            lacks=lacking_modalities(parts.config).get(data.number),
            suggests=dict(dataset.suggests),
            partition=partition.hash() if data.source.share == "partition" else None,
            unscaled=kind,
            covered=covered,
        )

    def _check_limit(self, config: RunConfig) -> None:
        """Raise :class:`UsageError` if statistics, which the run needs, would show single rows."""
        if self._data.source.private and config.data.limit is not None and config.privacy.level == "none":
            raise UsageError(
                f"data.limit {config.data.limit}: sums over so many of a client's rows and over one less show a row; leave it out"
            )

    def measure(self, config: RunConfig, question: Sealed, classes: Sequence[object]) -> Sealed:
        """Statistics of the training rows.

        Args:
            classes: of all clients; none: those of the data set.

        Raises:
            PrivateError: they cannot be summed; why may quote a number.
            UsageError: the sums would show single rows.
        """
        data = self._data
        self._check_limit(config)
        parts, key = data.read(config), config.to_yaml()
        if question.kind == "inquiry" or self._respondent is None or self._respondent[0] != key:
            names = tuple(map(str, classes))
            dataset = parts.dataset.with_classes(names) if names else parts.dataset
            rows = dataset.training_rows(np.asarray(parts.partition.train[data.number]), config.data.min_level)
            kind = SampleKind() if dataset.is_encoded else dataset.kind
            noise, source = statistics_noise(config, kind), SecretSource(self._secret(HANDSHAKE + key))
            private, secure = private_statistics(config, noise, source), config.wire.secure_aggregation
            self._respondent = key, Respondent(data.number, rows, private, secure, key.encode(), self._sums)
        try:
            return self._respondent[1].answer(question)
        except UsageError as error:  # which may quote a number
            if data.source.private:
                raise PrivateError(f"its statistics cannot be summed; {SEE_LOG}") from error
            raise
