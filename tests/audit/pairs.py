"""Small runs on image-text pairs that attacks can see through: crops of photographs under a smooth net."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.transforms.functional import to_pil_image

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import lenet
from fedpriv.audit.images.target import Target, of_messages
from fedpriv.audit.pairs import of_images
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import single_samples
from fedpriv.models.registry import Shape, register_model
from tests.simulation.small import play
from tests.simulation.trial import user_nets

SIDE, COUNT = 16, 16
PAIRS: dict[str, Any] = {
    "data.clients": 3,
    "data.image_only": 0.3,
    "data.text_only": 0.3,
    "model.name": "fusion",
    "model.backbone": "smooth",
    "model.pretrained": False,
    "model.projection": None,
    "model.encoder": "tiny",
    "train.rounds": 1,
    "train.participation": 1.0,
    "train.batch_size": COUNT,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
}
OWN: dict[str, dict[str, Any]] = {
    "smooth": {},
    "noisy": {"wire.transforms": [{"name": "gaussian", "variance": 1e-3}]},
    "perceptron": {"model.backbone": "mlp2"},
    "frozen": {"model.tune": "head"},
}
Runs = Callable[[str], RunRecord]


@contextmanager
def smooth_net() -> Iterator[None]:
    """Within, the backbone ``smooth`` is known: the sigmoid convolutions of DLG's LeNet."""
    with user_nets():

        @register_model("smooth", input_shape=(3, SIDE, SIDE), classes=10, smallest=SIDE, source="DLG's convolutions")
        def smooth(input_shape: Shape) -> tuple[nn.Module, int]:
            body, width = lenet().body, 12 * (SIDE // 4) ** 2
            for parameter in body.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
            return body, width

        yield


def pair_runs(folder: Path) -> Runs:
    """Runs by name, each made once: a round with one client of pairs, one with images and one with texts alone."""
    words = ("bridge", "wall", "roof", "fire", "smoke", "flood", "river", "street")
    for place, image in enumerate(default_images(COUNT, side=SIDE, reduce=8)[0]):
        home = folder / "data" / ("damage" if place % 2 else "none")
        for half in ("images", "text"):
            (home / half).mkdir(parents=True, exist_ok=True)
        to_pil_image(image).save(home / "images" / f"{place}.png")
        (home / "text" / f"{place}.txt").write_text(" ".join(words[(place + k) * k % 8] for k in range(1, 6)))

    def run(name: str) -> RunRecord:
        if not (folder / name).exists():
            play(folder / name, "fedavg", **{**PAIRS, **OWN[name], "data.name": str(folder / "data")})
        return RunRecord(folder / name)

    return run


def client(evidence: RunRecord, lacking: str | None) -> int:
    """The client that lacks that."""
    (found,) = [client for _, client in evidence.messages() if evidence.federation.data.lacking(client) == lacking]
    return found


def seen_of(evidence: RunRecord, one: Message) -> Observation:
    return of_images(evidence, one, evidence.observation(one, ThreatModel()))


def single(evidence: RunRecord, lacking: str | None) -> Target:
    """A client with the first image of the one that lacks that, beside its text where it has texts."""
    who = client(evidence, lacking)
    truth = evidence.truth(who)
    return of_messages(evidence, "one image", single_samples(evidence, 1, who, 1), truth.images[:1], truth.labels[:1], None)
