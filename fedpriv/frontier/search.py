"""Searches the weakest strength of a defence that meets a target, without training a model.

The run's clients repeat their local updates, from the downloads that the run kept, under the defence; what they send is attacked.
Membership, accuracy and epsilon are measured by real runs afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.conditions import Condition
from fedpriv.audit.membership.label_leaks import infer_labels, label_findings, shadow_labels
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, ShadowUpdates
from fedpriv.audit.record.views import recorded
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.audit.samples import on_images, on_rows, on_texts
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.frontier.grid import ANY_EXECUTOR
from fedpriv.simulation.setup import Federation, build
from fedpriv.wire import Sealed

Say = Callable[[str], None]
BY_REPLAY = ("recovered", "cells", "labels")
"""Measures that a replay gives."""
STEPS = 5
"""How often the range is halved, on a logarithmic scale."""


class Replayed(RunRecord):
    """The messages that a run's clients would have sent under another defence.

    Args:
        config: the run's, but for ``wire`` and ``privacy``.

    Raises:
        UsageError: the run cannot have that defence.
    """

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        super().__init__(run_dir)
        executor = config.executor.here().model_copy(update=ANY_EXECUTOR)
        self.federation = build(config.model_copy(update={"executor": executor}))
        self.config = self.federation.config  # with the noise that was found for an epsilon, which attackers know

    def message(self, round: int, client: int) -> Message:
        """The message that the client would have sent after the download that the run kept.

        Raises:
            FedprivError: its training diverged.
        """
        (result,) = self._update(self.federation, round, client)
        if result is None:
            raise FedprivError(f"the local update of client {client} in round {round} diverged under this defence")
        return self.simulated(round, client, result.sealed, self._download(round).tensors(), result.sealed.num_examples)

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        """The views that the replayed local update made of the images, which are not those of the run."""
        repeated, recorder = recorded(self.federation)
        if recorder is None:
            return None
        list(self._update(repeated, round, client))
        return recorder.views(images)

    def _update(self, federation: Federation, round: int, client: int) -> Iterator[ShadowResult | None]:
        updates = ShadowUpdates(federation, round, self._download(round), self.store.broadcast())
        return updates.run(lambda number: self.federation.data.train(client), [client])

    def _download(self, round: int) -> Sealed:
        if (download := self.store.download(round)) is None:
            raise FedprivError(f"{self.folder.path} kept no download of round {round}")
        return download


@dataclass(frozen=True)
class Search:
    """What a search tried.

    Attributes:
        held: the strengths that met the target, the weakest first; empty: not even the strongest did.
        tried: (strength, its measures by name) in the order of the search.
    """

    held: tuple[float, ...]
    tried: tuple[tuple[float, Mapping[str, float | None]], ...]


def measured(record: RunRecord, options: AuditOptions, wanted: Collection[str], say: Say) -> AuditedRun:
    """Attack what a replay sends, as far as the measures of :data:`BY_REPLAY` depend on it.

    Args:
        wanted: the measures; without ``labels`` no shadow clients are simulated.
    """
    not_run: dict[Part, Reason] = {}  # reported by the audit of the real run
    images = on_images(record, options, not_run, say) if "image" in record.modalities else []
    texts = on_texts(record, options, not_run, say) if "text" in record.modalities else []
    rows = on_rows(record, options, not_run, say) if not record.modalities else []
    labels = [infer_labels(record, round, client) for round, client in record.messages()[: options.messages]]
    shadow = None
    if "labels" in wanted and options.label_shadows:
        with suppress(FedprivError):  # it cannot be mounted, and the audit of the real run says why
            shadow = shadow_labels(record, record.store.rounds()[0], options.label_shadows, options.seed)
    config, facts = record.config, record.folder.facts
    assert config.model.name is not None, "a run's config names its model"
    return AuditedRun(
        name=record.folder.path.name,
        run_id=facts["run_id"],
        method=config.called,
        title=record.federation.method.title,
        dataset=facts["dataset"],
        model=config.model.name,
        modalities=record.modalities,
        seed=config.seed,
        cost=Cost(bytes_up=0),
        statistics=record.statistics(),
        images=tuple(attempts.described(None) for attempts in images),
        texts=tuple(texts),
        rows=tuple(attacked.result for attacked in rows),
        labels=tuple(label_findings(labels).labels),
        shadow_labels=shadow,
    )


def search(measure: Callable[[float], AuditedRun], bounds: tuple[float, float], target: Sequence[Condition], say: Say) -> Search:
    """Bisect for the weakest strength that meets every condition on :data:`BY_REPLAY`.

    Args:
        measure: strength -> the run with what a replay shows.
        bounds: the weakest and the strongest strength.

    Raises:
        UsageError: the run cannot have the defence.
    """
    wanted = [condition for condition in target if condition.measure in BY_REPLAY]
    tried, held = list[tuple[float, Mapping[str, float | None]]](), list[float]()

    def holds(strength: float) -> bool:
        try:
            run = measure(strength)
        except UsageError:  # the run cannot have this defence at any strength
            raise
        except FedprivError as error:  # such as a local update that diverges under it
            tried.append((strength, {condition.measure: None for condition in wanted}))
            say(f"strength {strength:.3g}: does not hold, as it is not known: {error}")
            return False
        values = {condition.measure: condition.value(run) for condition in wanted}
        tried.append((strength, values))
        good = all(condition.holds(run) for condition in wanted)
        if good:
            held.insert(0, strength)
        measures = ", ".join(f"{name} {'not known' if value is None else f'{value:.3g}'}" for name, value in values.items())
        say(f"strength {strength:.3g}: {measures}: {'holds' if good else 'does not hold'}")
        return good

    weak, strong = bounds
    if holds(strong) and not holds(weak):
        for _ in range(STEPS):
            middle = float(f"{math.sqrt(weak * strong):.3g}")
            weak, strong = (weak, middle) if holds(middle) else (middle, strong)
    return Search(tuple(held), tuple(tried))
