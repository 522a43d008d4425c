"""The easiest case that a run's protocol allows an attacker: clients that hold a single image."""

from __future__ import annotations

from itertools import islice

from fedpriv.audit.evidence.messages import Evidence, Message
from fedpriv.audit.evidence.shadow_updates import ShadowUpdates
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.simulation.setup import Federation


class NotSimulated(FedprivError):
    """Clients of a run may hold a single sample, and here their messages could not be made: what they show is not known."""


def single_images(evidence: Evidence, round: int, client: int, count: int, federation: Federation | None = None) -> list[Message]:
    """The messages of simulated clients that hold one image each, those of :func:`shared_out`.

    They train as in the run, with its schedule, defences and differential privacy, from that round's download. No real message
    of the run stands for a single image.

    Args:
        federation: the run's, where its augmentation is recorded (:func:`fedpriv.audit.evidence.views.recorded`).

    Raises:
        UsageError: the run's loss is not defined for a single image.
        NotSimulated: the round's download was not kept, or such a client diverged.
    """
    objective = evidence.federation.method.objective
    if objective.smallest_batch > 1:
        raise UsageError(f"a client with a single image cannot train, as {objective.name} contrasts images with each other")
    if (least := evidence.config.train.min_batch) > 1:
        raise UsageError(f"a client with a single image takes no step, as train.min_batch is {least}")
    download, message = evidence.store.download(round), evidence.message(round, client)
    if download is None:
        raise NotSimulated(f"what the server sent in round {round} was not kept")
    updates = ShadowUpdates(federation or evidence.federation, round, download, evidence.store.broadcast())
    data, alone = evidence.federation.data, shared_out(evidence, client, count)

    def of(number: int) -> Split:
        owner, at = alone[number]
        held = data.train(owner)
        return held.at(held.labels.new_tensor([at]))

    results = list(updates.run(of, range(len(alone))))
    if any(one is None for one in results):
        raise NotSimulated(f"in round {round} a simulated client with a single sample diverged")
    stated = None if message.num_examples is None else 1
    return [evidence.simulated(round, client, one.sealed, message.received, stated) for one in results if one is not None]


def shared_out(evidence: Evidence, client: int, count: int) -> list[tuple[int, int]]:
    """At most ``count`` samples as (client, index among its own).

    This client's come first, then those of clients that hold the same modalities.
    """
    data, clients = evidence.federation.data, range(evidence.config.data.clients)
    alike = [other for other in clients if other != client and data.lacking(other) == data.lacking(client)]
    return list(islice(((one, at) for one in (client, *alike) for at in range(data.size(one))), count))
