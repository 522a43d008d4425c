"""The weakest strength of a defence that holds a target, from a run's downloads alone: no model is trained.

The run's own clients play their local updates again, from the downloads that it kept, under the defence; attacks try what they
send. Membership, accuracy and epsilon are measured by real runs afterwards.
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
from fedpriv.audit.membership.label_leaks import findings_of, labels_of, shadow_labels
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, ShadowUpdates
from fedpriv.audit.record.views import recorded
from fedpriv.audit.results import AuditedRun, Cost, Part
from fedpriv.audit.run_audit import AuditOptions, on_images, on_texts
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.frontier.grid import ANY_EXECUTOR
from fedpriv.simulation.setup import Federation, build
from fedpriv.wire import Sealed

Say = Callable[[str], None]
BY_REPLAY = ("recovered", "labels")
"""Measures that a replay can take."""
STEPS = 5
"""Halvings of the range, of its logarithm."""


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
        """As the client would have sent it from the download that the run kept.

        Raises:
            FedprivError: its training diverged.
        """
        (found,) = self._update(self.federation, round, client)
        if found is None:
            raise FedprivError(f"the local update of client {client} in round {round} diverged under this defence")
        return self.simulated(round, client, found.sealed, self._download(round).tensors(), found.sealed.num_examples)

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        """As of a run, but of the replayed local update, which draws other views than that of the run."""
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
class Strength:
    """The result of a search.

    Attributes:
        held: the values that were seen to hold, the weakest first; empty: not even the strongest does.
        tried: (strength, each measure) in the order of the search.
    """

    held: Sequence[float]
    tried: Sequence[tuple[float, Mapping[str, float | None]]]


def measured(evidence: RunRecord, options: AuditOptions, wanted: Collection[str], say: Say) -> AuditedRun:
    """The run with what conditions on :data:`BY_REPLAY` look at.

    Args:
        wanted: the measures; without ``labels`` no simulated clients are trained for it.
    """
    not_run: dict[Part, Reason] = {}  # the audit of the real run says it
    images = on_images(evidence, options, not_run, say) if "image" in evidence.modalities else []
    texts = on_texts(evidence, options, not_run, say) if "text" in evidence.modalities else []
    labels = [labels_of(evidence, round, client) for round, client in evidence.messages()[: options.messages]]
    shadow = None
    if "labels" in wanted and options.label_shadows:
        with suppress(FedprivError):  # it cannot be mounted, and the audit of the real run says why
            shadow = shadow_labels(evidence, evidence.store.rounds()[0], options.label_shadows, options.seed)
    config, facts = evidence.config, evidence.folder.facts
    assert config.model.name is not None, "a run's config names its model"
    return AuditedRun(
        name=evidence.folder.path.name,
        run_id=facts["run_id"],
        method=config.called,
        title=evidence.federation.method.title,
        dataset=facts["dataset"],
        model=config.model.name,
        modalities=evidence.modalities,  # without them, what is not known is that of images
        seed=config.seed,
        cost=Cost(bytes_up=0),
        statistics=evidence.statistics(),
        images=tuple(one.described(None) for one in images),
        texts=tuple(texts),
        labels=tuple(findings_of(labels).labels),
        shadow_labels=shadow,
    )


def search(
    measure: Callable[[float], AuditedRun], bounds: tuple[float, float], target: Sequence[Condition], say: Say
) -> Strength:
    """Bisect for the weakest value at which every condition that a replay can measure holds.

    Args:
        measure: a value -> what a replay under it shows.
        bounds: the weakest value and the strongest.

    Raises:
        UsageError: the run cannot have the defence.
    """
    wanted = [one for one in target if one.measure in BY_REPLAY]
    tried, held = list[tuple[float, Mapping[str, float | None]]](), list[float]()

    def holds(strength: float) -> bool:
        try:
            run = measure(strength)
        except UsageError:  # no result, and not one of this strength alone
            raise
        except FedprivError as error:  # such as a local update that diverges under it
            tried.append((strength, {one.measure: None for one in wanted}))
            say(f"strength {strength:.3g}: does not hold, as it is not known: {error}")
            return False
        values = {one.measure: one.value(run) for one in wanted}
        tried.append((strength, values))
        good = all(one.holds(run) for one in wanted)
        if good:
            held.insert(0, strength)
        said = ", ".join(f"{name} {'not known' if value is None else f'{value:.3g}'}" for name, value in values.items())
        say(f"strength {strength:.3g}: {said}: {'holds' if good else 'does not hold'}")
        return good

    weak, strong = bounds
    if holds(strong) and not holds(weak):
        for _ in range(STEPS):
            middle = float(f"{math.sqrt(weak * strong):.3g}")
            weak, strong = (weak, middle) if holds(middle) else (middle, strong)
    return Strength(held, tried)
