"""A malicious server: a client of a run trains again, from a download that the server has altered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedpriv.attacks.attack import ImageAttack, TextAttack
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowUpdates
from fedpriv.audit.record.views import Recorder, recorded
from fedpriv.client.receiving import receive
from fedpriv.client.suspicion import generator_of_run
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, SuspiciousDownload
from fedpriv.wire import Payload, Sealed, seal


@dataclass(frozen=True)
class Replay:
    """A client's answer to an altered download.

    Attributes:
        message: the client's message: it received the altered tensors and trained with its check switched off.
        altered: names of the tensors that the server altered.
        refusal: the refusal by the client's check; ``None``: it notices nothing, or the run has switched it off.
        checked: whether the run checks downloads.
        recorder: the views that the client trained on; ``None``: it does not augment.
    """

    message: Message
    altered: tuple[str, ...]
    refusal: str | None
    checked: bool
    recorder: Recorder | None = None

    @property
    def sentence(self) -> str:
        """Whether the client's check refuses the download, in a sentence."""
        unseen = "does not notice" if self.checked else "is switched off in this run"
        return f"the client's check of downloads {unseen if self.refusal is None else f'refuses: {self.refusal}'}"


def replay(record: RunRecord, round: int, client: int, attack: ImageAttack | TextAttack, public: Tensor, seed: int) -> Replay:
    """Send a client the download of a kept round, altered by the attack, and let it train on its own data.

    Schedule, loss and transforms are the run's. It is the client's first local update, and its random numbers differ from the
    run's, as in :class:`ShadowUpdates`.

    Args:
        public: images ``(m, C, H, W)`` in [0, 1], or token ids ``(m, L)``, that the server has.

    Raises:
        FedprivError: the attack cannot be mounted on this run, or the client diverged.
    """
    message, download = record.message(round, client), record.store.download(round)
    if record.summed or download is None:
        raise FedprivError(f"{attack.name} needs a run whose server sends weights and gets uploads one by one")
    honest = record.observation(message, ThreatModel())
    try:
        tensors = attack.alter(honest, public, seed)
    except Inapplicable as reason:
        raise FedprivError(f"{attack.name} cannot be mounted: {reason}") from None
    names = {cut: name for name, cut in record.attacker.victim(message).names.items()}
    altered = {names.get(name, name): tensor for name, tensor in tensors.items()}
    sent = seal(Payload({**download.tensors(), **altered}, round))
    federation, broadcast = record.federation, record.store.broadcast()
    unchecked = replace(federation.agreement, config=federation.config.with_check(False))
    open_to_all, recorder = recorded(replace(federation, agreement=unchecked))
    data: Split = federation.data.train(client)
    answer = next(ShadowUpdates(open_to_all, round, sent, broadcast).run(lambda number: data, [0]))
    if answer is None:
        raise FedprivError(f"client {client} diverged on what {attack.name} sent")
    message = record.simulated(round, client, answer.sealed, sent.tensors(), answer.sealed.num_examples)
    checked = record.config.wire.check_downloads is not False
    return Replay(message, tuple(sorted(altered)), refused(record, round, sent) if checked else None, checked, recorder)


def refused(record: RunRecord, round: int, download: Sealed) -> str | None:
    """The refusal of a download by a client of the run; ``None``: it takes it.

    Where the config leaves the check open, the client checks as in a deployment, although the simulation would only warn.
    """
    federation = record.federation
    checks = replace(federation.agreement, config=federation.config.with_check(True))
    try:
        receive(checks, round, download, federation.initial, generator_of_run(checks, round))
    except SuspiciousDownload as reason:
        return str(reason)
    return None
