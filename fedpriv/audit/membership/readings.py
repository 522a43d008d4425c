"""Logits from an upload, also where its last layers are hidden and the server completes it with its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedpriv.attacks.core.labels import groups
from fedpriv.audit.record.shadow_updates import ShadowResult
from fedpriv.client.resident import Resident
from fedpriv.data.federated import Split
from fedpriv.samples import Inputs, size

Reading = Callable[[Mapping[str, Tensor]], Tensor]
"""Uploaded tensors, by the net's names -> logits ``(n, C)`` of given inputs."""

STAND_IN, PROBE = "head trained by the server", "linear probe"


def readings(resident: Resident, own: ShadowResult, spare: Split, inputs: Inputs, has_head: bool = True) -> dict[str, Reading]:
    """The readings of an upload, by name; where the upload is the whole model, a single one with an empty name.

    Where the head is hidden, neither of two readings is always better: the head that the server trained in its own local update
    resembles a client's after its first one; a linear probe on the uploaded encoder's features needs no such resemblance.

    Args:
        own: a local update of the server with ``spare``, its own data.
        inputs: the candidates.
        has_head: whether the run trains a head.
    """

    def load(uploaded: Mapping[str, Tensor]) -> None:
        resident.row.copy_(resident.space.pack(uploaded, own.model.clone()))

    def stand_in(uploaded: Mapping[str, Tensor]) -> Tensor:
        load(uploaded)
        return resident.from_features(resident.features(inputs)).logits

    def probe(uploaded: Mapping[str, Tensor]) -> Tensor:
        load(uploaded)
        known, asked = (resident.features(x).flatten(1).double().cpu().numpy() for x in (spare.inputs, inputs))
        fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(known, spare.labels.cpu().numpy())
        margins = torch.from_numpy(fitted.decision_function(asked))
        logits = torch.stack([-margins / 2, margins / 2], 1) if margins.ndim == 1 else margins
        # The candidates' labels are known, so the attacker can exclude classes that the client does not hold.
        everything = torch.full((size(inputs), resident.net.classes), -1e3, dtype=torch.float64)
        everything[:, torch.from_numpy(fitted.classes_)] = logits
        return everything

    names = resident.space.names
    if has_head and all(name in own.uploaded for name in names):
        return {"": stand_in}
    ways: dict[str, Reading] = {STAND_IN: stand_in} if has_head else {}
    if any(name.startswith("encoder.") for name in own.uploaded) and len(torch.unique(groups(spare.labels))) > 1:
        ways[PROBE] = probe
    return ways
