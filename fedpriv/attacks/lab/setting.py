"""The settings of controls, in which an attack must succeed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.core.labels import targets
from fedpriv.attacks.core.observation import Observation, Public, Schedule, SplitNet, ThreatModel, in_clients_mode
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.lab.images import default_images, digits
from fedpriv.attacks.lab.nets import observe, one_for_each, perceptron, reference_victim

Alter = Callable[[Observation, Tensor, int], Mapping[str, Tensor]]
"""See :meth:`fedpriv.attacks.attack.Attack.alter`."""
PUBLIC = 200
"""Number of public images or rows of a malicious server in controls."""
LEARNED = 1000
"""Number of public rows that an attack learns from in controls."""
HALF = 0.5
EXAMPLE = RowEncoding(
    (
        NumberColumn("age", 47.0, 16.0),
        NumberColumn("weight", 75.0, 14.0),
        NumberColumn("visits", 3.0, 2.5),
        NumberColumn("creatinine", 1.1, 0.4, gaps=True),
        CategoryColumn("sex", ("f", "m")),
        CategoryColumn("smoker", ("never", "former", "current")),
        CategoryColumn("admission", ("emergency", "elective", "transfer", "birth")),
        CategoryColumn("ward", tuple("abcdefgh")),
        CategoryColumn("diagnosis", tuple(f"D{number:02}" for number in range(12))),
    )
)
"""The columns of a small table of patients. Creatinine is missing now and then; the categories have 2 to 12 levels."""


@dataclass(frozen=True)
class Setting:
    """The victim in the controls of an attack.

    Attributes:
        net: :func:`fedpriv.attacks.lab.nets.reference_victim`, :func:`fedpriv.attacks.lab.nets.perceptron`, also with ReLU
            (``rectified``) and with a second layer (``rectified twice``), or :func:`fedpriv.attacks.lab.nets.one_for_each`.
        layers, masked: linear layers at the end of the reference victim, and how many of them are hidden.
        threat: what the attacker knows.
        steps: local steps behind a change of the weights; 0: a gradient.
        images: their number, rounded to whole messages.
        per_message: images behind each message.
        side: of the images, in pixels.
        min_recovery: the share of images that the positive control must recover; 0: only a negative control.
        kind: crops of photographs; or digits, whose distribution can be learned. An attacker who has public images gets the
            digits that are not attacked.
        batch_norm: whether the reference victim has BatchNorm, which normalises by the batch.
        targeted: whether the attack aims at one image per message; ``min_recovery`` is then a share of these.
    """

    net: Literal["reference", "perceptron", "rectified", "rectified twice", "one for each"] = "reference"
    layers: int = 1
    masked: int = 0
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    steps: int = 0
    images: int = 4
    per_message: int = 1
    side: int = 32
    min_recovery: float = 0.8
    kind: Literal["photographs", "digits"] = "photographs"
    batch_norm: bool = False
    targeted: bool = False

    def with_batch_norm(self) -> Setting:
        """This setting with a reference victim that normalises by the batch. That nearly cancels an image's contrast and
        brightness, so at most half of the images must be recovered."""
        return replace(self, net="reference", batch_norm=True, min_recovery=min(self.min_recovery, HALF))

    def truth(self, seed: int) -> tuple[Tensor, Tensor]:
        """Images ``(n, C, side, side)`` and labels ``(n,)`` for whole messages; labels differ within a message of up to ten."""
        n = max(1, self.images // self.per_message) * self.per_message
        if self.kind == "digits":
            images, labels = (part[:n] for part in digits(seed, self.side))
            return images, labels
        images, labels = default_images(n, seed, side=self.side)
        if 1 < self.per_message <= 10:
            generator = torch.Generator().manual_seed(seed)
            drawn = [torch.randperm(10, generator=generator)[: self.per_message] for _ in range(len(images) // self.per_message)]
            labels = torch.cat(drawn)
        return images, labels

    def observations(self, images: Tensor, labels: Tensor, seed: int, alter: Alter | None = None) -> list[Observation]:
        """The messages, each on :attr:`per_message` of the images.

        Args:
            alter: how a malicious server alters the weights; it gets other crops of the same photographs.
        """
        granted = self.granted(seed)
        pairs = list(zip(torch.split(images, self.per_message), torch.split(labels, self.per_message), strict=True))
        nets = [self._net(some, seed) for some, _ in pairs]
        messages = [self._observed(net, *pair) for net, pair in zip(nets, pairs, strict=True)]
        if alter is not None:
            public, _ = default_images(PUBLIC, seed + 1, side=self.side)
            for net, message in zip(nets, messages, strict=True):
                net.load_state_dict(alter(message, public, seed), strict=False)
            messages = [self._observed(net, *pair) for net, pair in zip(nets, pairs, strict=True)]
        if self.steps:
            messages = [trained(message, *pair, self.steps) for message, pair in zip(messages, pairs, strict=True)]
        return [replace(message, public=granted) for message in messages]

    def granted(self, seed: int) -> Public | None:
        """The public images, if the attacker has some."""
        return self.rest(seed) if self.threat.public and self.kind == "digits" else None

    def rest(self, seed: int) -> Public:
        """The digits that :meth:`truth` leaves over."""
        return Public(*(part[self.images :] for part in digits(seed, self.side)))

    def _observed(self, net: SplitNet, images: Tensor, labels: Tensor) -> Observation:
        return observe(net, images, labels, self.threat, hidden=self.masked > 0)

    def _net(self, images: Tensor, seed: int) -> SplitNet:
        channels = images.shape[1]
        if self.net == "reference":
            return reference_victim(seed, 10, self.layers, self.masked, channels, self.side, self.side, self.batch_norm)
        if self.net == "perceptron":
            return perceptron(seed, channels=channels, height=self.side, width=self.side)
        if self.net in ("rectified", "rectified twice"):
            then = 64 if self.net == "rectified twice" else None
            size = {"channels": channels, "height": self.side, "width": self.side}
            return perceptron(seed, **size, hidden=256, activation=nn.ReLU, then=then)
        return one_for_each(images, seed)


@dataclass(frozen=True)
class TextSetting:
    """The victim in the controls of an attack on texts: undefended gradients of one sentence each, through a small BERT.

    Attributes:
        messages: their number.
        tokens: number of tokens of each sentence, two of which are special.
        rouge: the ROUGE-L that the positive control must reach if the attack finds an order; it must always find every token.
    """

    messages: int = 3
    tokens: int = 8
    rouge: float = 0.8


@dataclass(frozen=True)
class RowSetting:
    """The victim in the controls of an attack on rows: a perceptron on made-up rows of a table.

    Attributes:
        encoding: the table's columns; controls of an audit have those of the attacked table.
        classes: of the labels.
        numbers: whether labels are standardised numbers, and no classes; the net then has one output.
        widths: of the two hidden layers.
        smooth: whether sigmoids follow them, instead of ReLU.
        threat: what the attacker knows.
        steps: local steps behind a change of the weights, each on all rows; 0: a gradient.
        rows: their number, rounded to whole messages.
        per_message: rows behind each message.
        min_recovery: the share of cells that the positive control must recover; 0: only a negative control.
    """

    encoding: RowEncoding = EXAMPLE
    classes: int = 2
    numbers: bool = False
    widths: tuple[int, int] = (128, 64)
    smooth: bool = False
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    steps: int = 0
    rows: int = 4
    per_message: int = 1
    min_recovery: float = 0.9

    def truth(self, seed: int) -> tuple[Tensor, Tensor]:
        """Rows ``(n, F)`` and labels ``(n,)`` for whole messages."""
        count, generator = max(1, self.rows // self.per_message) * self.per_message, torch.Generator().manual_seed(seed)
        rows = made_up_rows(self.encoding, count, generator)
        if self.numbers:
            return rows, torch.randn(count, generator=generator)
        return rows, torch.randint(self.classes, (count,), generator=generator)

    def observations(self, rows: Tensor, labels: Tensor, seed: int, alter: Alter | None = None) -> list[Observation]:
        """The messages, each on :attr:`per_message` of the rows and through a net of its own; if the
        attacker has public rows, all go through one net, as it learns about one net only.

        Args:
            alter: how a malicious server alters the weights; it gets other rows of the table.
        """
        messages, granted = [], self.granted(seed)
        parts = zip(torch.split(rows, self.per_message), torch.split(labels, self.per_message), strict=True)
        for number, some in enumerate(parts):
            net = self._net(seed + number if granted is None else seed)
            message = self._observed(net, *some)
            if alter is not None:
                public = made_up_rows(self.encoding, PUBLIC, torch.Generator().manual_seed(seed + 1))
                net.load_state_dict(alter(message, public, seed), strict=False)
                message = self._observed(net, *some)
            messages.append(trained(message, *some, self.steps) if self.steps else message)
        return [replace(message, public=granted) for message in messages]

    def granted(self, seed: int) -> Public | None:
        """Other rows of the table, if the attacker has public ones."""
        return Public(*replace(self, rows=LEARNED, per_message=1).truth(seed + 1)) if self.threat.public else None

    def _observed(self, net: SplitNet, rows: Tensor, labels: Tensor) -> Observation:
        return replace(observe(net, rows, labels, self.threat), encoding=self.encoding, numbers=self.numbers)

    def _net(self, seed: int) -> SplitNet:
        hidden, then = self.widths
        activation = nn.Sigmoid if self.smooth else nn.ReLU
        return perceptron(seed, self.classes, self.encoding.width, 1, 1, hidden, activation, then)


def trained(observation: Observation, samples: Tensor, labels: Tensor, steps: int) -> Observation:
    """The message of a client that takes so many steps on all of the samples, as the net takes them."""
    schedule = Schedule(lr=0.1, steps=steps, batch_size=len(samples))
    target = targets(labels, observation.classes, samples.dtype)
    change = simulate_local_update(
        in_clients_mode(observation.net), observation.weights, list(observation.shared), samples, target, schedule
    )
    shared = {name: tensor.detach() for name, tensor in change.items()}
    return replace(observation, kind="change", shared=shared, schedule=schedule)
