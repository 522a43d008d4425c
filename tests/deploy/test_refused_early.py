"""A run that cannot work is refused before clients measure or agree to anything; by its config alone, before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.flower.requests import Request
from fedpriv.deploy.frames import Frame
from fedpriv.errors import FedprivError, UsageError
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import play_apart
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

ROWS = [f"{20 + n * n % 17},{'fm'[n % 2]},{n % 3 + n % 5}.5,{'yes' if n % 3 else 'no'}" for n in range(40)]
TWO = {"data.clients": 2, "data.partition.name": "iid", "train.participation": 1.0}
LABELS = {"rows": "again", "texts": "label", "images": None}
EPSILON = {"privacy.level": "sample", "privacy.target_epsilon": 8.0}


class Asked(Loopback):
    """A grid that notes what clients are asked."""

    def __init__(self, nodes: Mapping[int, ClientNode]) -> None:
        super().__init__(nodes)
        self.asked = set[str]()

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        self.asked |= {request["do"] for frame in frames.values() for request in frame.entries}
        yield from super().exchange(frames, seconds, round)


def own(folder: Path, what: str, client: int) -> str:
    """The data of a client, of some kind."""
    if what == "images":
        write_folder(folder / f"images-{client}", pixels(24, 8, 8), [0, 1] * 12)
        return str(folder / f"images-{client}")
    lines = ["age,sex,dose,again", *ROWS[client * 20 :][:20]] if what == "rows" else ["text,label", *("good day,1", "bad,0") * 10]
    (folder / f"{client}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / f"{client}.csv")


@pytest.mark.parametrize(
    ("what", "method", "settings", "why"),
    [
        ("rows", "fedavg", {"data.pixels": "unit"}, "data.pixels unit is for images, and this client holds rows of a table"),
        ("rows", "fedavg", {"data.augment": "crop_flip"}, "data.augment crop_flip is for images or texts"),
        ("rows", "fedavg", {"data.image_size": 8}, "data.image_size 8 is for images"),
        ("rows", "fedavg", {"model.encoder": "tiny"}, "model.encoder tiny is for images or texts"),
        ("rows", "fedavg", {"model.name": "transformer"}, "model transformer is for texts"),
        ("rows", "fedavg", {"objective": "simclr"}, "simclr needs two views of an image, but this client holds rows of a table"),
        ("rows", "fedavg", {"model.name": "resnet18"}, "resnet18"),
        ("rows", "fedavg", {"data.limit": 10}, "sums over so many of a client's rows and over one less show a row"),
        ("rows", "fedavg", {"eval.metric": "rmse"}, "eval.metric rmse needs numbers to predict"),
        ("rows", "fedavg", {"wire.secure_aggregation": True}, "wire.secure_aggregation"),
        ("rows", "fedavg", {"train.batch_size": 50, "train.min_batch": 50}, "no client would take a step"),
        ("rows", "fedavg", {"wire.transforms": [{"name": "mask", "last": 9}]}, "layers"),
        pytest.param(
            "rows",
            "fedavg-ft",
            EPSILON,
            "of client 1 requires epsilon, and no epsilon covers fine-tuning before tests",
            marks=pytest.mark.slow,
        ),
        (
            "texts",
            "fedavg",
            {"model.encoder": "tiny", "data.pixels": "raw"},
            "data.pixels raw is for images, and this client holds",
        ),
        (
            "texts",
            "fedavg",
            {"model.encoder": "tiny", "model.name": "mlp"},
            "model mlp is not for this client, which holds texts",
        ),
        ("images", "fedavg", {"model.tune": "head"}, "model.tune is for texts, and this client holds images alone"),
        ("images", "fedavg", {"data.text_only": 0.5}, "are for image-text pairs, and this client holds images alone"),
        ("images", "fedavg", {"eval.metric": "r2"}, "eval.metric r2 needs numbers to predict"),
    ],
)
def test_what_does_not_suit_the_samples(tmp_path: Path, what: str, method: str, settings: dict[str, Any], why: str) -> None:
    of = {n: ClientNode(n, Source(own(tmp_path, what, n), label=LABELS[what]), tmp_path / f"client-{n}") for n in (0, 1)}
    if method == "fedavg-ft":
        of[1].setups.requires = Requires(epsilon=8)
        settings = {**settings, "data.bounds": {"age": [0, 99], "dose": [0, 9]}, "data.levels": {"sex": ["f", "m"]}}
    grid = Asked(of)
    with pytest.raises(FedprivError) as refused:
        play_apart(tmp_path / "run", method, grid=grid, **{"data.name": "own.csv", **TWO, **settings})
    assert why in str(refused.value) and len(str(refused.value)) < 400
    assert grid.asked == {"describe"} and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("pooled", {}, "needs all data in one place"),
        ("fedavg", {"eval.probe": "linear"}, "which the server has not"),
        ("fedavg", {"eval.before_merge": True}, "which the server has not"),
        ("fedavg", {"eval.fresh_head": 1}, "trained afresh in simulations"),
        ("fedavg", {"privacy.level": "client", "privacy.noise": 4.0}, "use sample"),
        ("fedavg", {"data.corrupt_clients": 0.5}, "bad clients are simulated"),
        ("fedavg", {"model.name": "nets:Net"}, "clients import nothing that a server names"),
        ("fedavg", {"eval.metric": "acuracy"}, "acuracy"),
        ("fedavg", {"tracking.name": "nowhere"}, "nowhere"),
        ("fedavg", {"wire.transforms": [{"name": "rot13"}]}, "rot13"),
        ("fedavg", {"method.mu": 3}, "mu"),
    ],
)
def test_what_no_data_could_suit_leaves_no_request(tmp_path: Path, method: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Request.write(tmp_path, tmp_path / "run", config(method, **{**TWO, **settings}), 2, 60)
    assert not list(tmp_path.glob("*.json"))


def test_a_client_that_cannot_take_part_is_named_before_the_others_have_answered(tmp_path: Path) -> None:
    """One of them may be away for minutes."""

    class Slow(Loopback):
        def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
            for client, answer in super().exchange({1: frames[1]}, seconds, round):
                assert isinstance(answer, Frame)
                entry = {**answer.entries[0], "time": 0.0}
                yield client, Frame({**answer.head, "entries": [entry]})
            pytest.fail("client 0 was waited for")

    of = {n: ClientNode(n, Source("digits", share="partition"), tmp_path / f"client-{n}") for n in (0, 1)}
    with pytest.raises(UsageError, match="the clock of client 1"):
        play_apart(tmp_path / "run", "fedavg", grid=Slow(of), **{**TWO, "data.limit": 60})
