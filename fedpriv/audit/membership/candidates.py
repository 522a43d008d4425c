"""The candidates of membership inference: training samples of a client (members), and non-members.

Up to the attacked round no client may have trained on non-members, as the server's model would have learned them. They come from
the data set's test split, and from the part of the training split that belongs to no client or to clients that have not taken
part yet. They have the client's classes in its proportions; otherwise knowing these would be enough. If labels are numbers, all
samples are of one class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.labels import groups
from fedpriv.attacks.inference.membership import Mask
from fedpriv.data.federated import FederatedData, Split
from fedpriv.data.user_data.owners import Owners, owners_of
from fedpriv.errors import FedprivError
from fedpriv.samples import Inputs, each, tensors
from fedpriv.seeding import generator
from fedpriv.server.sampling import participants
from fedpriv.simulation.setup import Federation


@dataclass(frozen=True)
class Candidates:
    """The candidates for one upload.

    Attributes:
        data: as many members as non-members, shuffled; the attack gets these.
        members: which of them the client trained on ``(n,)``, for scoring; the attack never gets it.
        samples: their numbers in the data set ``(n,)``.
        spare: the attacker's own data, of the same classes; disjoint from the candidates, and not used by any client.
    """

    data: Split
    members: Mask
    samples: npt.NDArray[np.int64]
    spare: Split


def candidates(federation: Federation, round: int, client: int, seed: int = 0) -> Candidates:
    """The candidates for a client's upload of a round, drawn by ``seed``.

    Of each class, half of the unused samples become the attacker's own data. Where fewer are left than the client has, fewer of
    its samples become candidates.

    Where clients come with the data, such as hospitals or writers, a sample reveals its client. There the non-members are also
    the client's own, or an attack would find whose samples they are, and not whether they were trained on.

    Raises:
        FedprivError: there are no non-members of the client's classes.
    """
    data = federation.data
    noise = generator(seed, round, client, "candidates")
    train, test = data.labels("train"), data.labels("server")
    labels = groups(torch.cat([train, test]))  # positions below are in the training split followed by the test split
    owners = owners_of(federation.config.data, federation.dataset.owners)
    whose = f"that no client trained on up to round {round}" if owners is None else "of its own that it did not train on"
    unseen = _unseen(federation, round, client) if owners is None else _held_out(federation, client, owners)
    own = torch.unique(data.indices("train", client))  # behind a sum, two clients may hold the same sample
    inside, outside, spare = [], [], []
    for label in torch.unique(labels[own]):
        mine, theirs = (_shuffled(held[labels[held] == label], noise) for held in (own, unseen))
        n = min(len(mine), len(theirs) // 2)
        inside.append(mine[:n])
        outside.append(theirs[:n])
        spare.append(theirs[n : n + len(mine)])
    members = torch.cat(inside)
    if not len(members):
        raise FedprivError(f"client {client}: its classes have fewer than two samples {whose}")
    chosen, encoder = _shuffled(torch.cat([members, *outside]), noise), federation.prepared.encoder
    pad = 0 if encoder is None else encoder.pad
    return Candidates(
        _gather(data, chosen, pad),
        torch.isin(chosen, members).cpu().numpy(),
        chosen.cpu().numpy(),
        _gather(data, _shuffled(torch.cat(spare), noise), pad),
    )


def _unseen(federation: Federation, round: int, client: int) -> Tensor:
    """The samples that no client trained on up to the round."""
    data = federation.data
    train, test = data.labels("train"), data.labels("server")
    fresh = torch.ones(len(train), dtype=torch.bool, device=train.device)
    trained = {other for earlier in range(1, round + 1) for other in participants(federation.agreement, earlier)}
    for other in trained | {client}:
        fresh[data.indices("train", other)] = False
    return torch.cat([fresh.nonzero().squeeze(1), len(train) + torch.arange(len(test), device=train.device)])


def _held_out(federation: Federation, client: int, owners: Owners) -> Tensor:
    """The samples of the client that it did not train on."""
    data = federation.data
    samples = [data.indices("validation", client)]
    if data.partition.test_split == "train":
        samples.append(data.indices("test", client))
    elif owners.test is not None:
        samples.append(len(data.labels("train")) + data.indices("test", client))
    return torch.cat(samples)


def _shuffled(positions: Tensor, noise: torch.Generator) -> Tensor:
    return positions[torch.randperm(len(positions), generator=noise).to(positions.device)]


def _gather(data: FederatedData, positions: Tensor, pad: int) -> Split:
    """The samples at positions of the training split followed by the test split, in order."""
    size = len(data.labels("train"))
    trained, tested = data.pick("train", positions[positions < size]), data.pick("server", positions[positions >= size] - size)
    width = max(_columns(trained.inputs), _columns(tested.inputs))
    trained, tested = (part._replace(inputs=_widened(part.inputs, width, pad)) for part in (trained, tested))
    order = torch.argsort(torch.cat([(positions < size).nonzero(), (positions >= size).nonzero()]).squeeze(1))
    return trained.followed_by(tested).at(order)


def _columns(inputs: Inputs) -> int:
    """L of the token ids among the inputs; 0 where there are none."""
    return max((part.shape[1] for part in tensors(inputs).values() if not part.is_floating_point()), default=0)


def _widened(inputs: Inputs, width: int, pad: int) -> Inputs:
    """The inputs with token ids ``(n, L)`` padded to ``width``, as the longest sentences of the two splits may differ."""
    return each(inputs, lambda part: part if part.is_floating_point() else F.pad(part, (0, width - part.shape[1]), value=pad))
