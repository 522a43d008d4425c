"""The rows of the table: what each attack is measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from on_clients import on_clients
from on_messages import SEED, after_epochs, defended, on_images, on_text, spear


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        measure: the config, and the name of the images -> results, one a cell.
        group: the table of the report in which it is.
        data: ``None``: the images that the command names.
    """

    measure: Callable[[dict[str, Any], str], list[dict[str, Any]]]
    group: str
    config: dict[str, Any]
    data: str | None = None


def image_row(attack: str, options: dict[str, Any], threat: dict[str, Any] | None = None, **setting: Any) -> Row:
    group = "malicious" if (threat or {}).get("download") else "honest"
    config = {"attack": attack, "options": options, "threat": threat or {}, "setting": setting}
    return Row(on_images, group, config)


def defended_row(
    attack: str, images: int, options: dict[str, Any], threat: dict[str, Any] | None = None, **defence: float
) -> Row:
    config = {"attack": attack, "options": options, "threat": threat or {}, "images": images, **defence}
    return Row(defended, "honest", config, "digits")


def text_row(attack: str, sentences: int = 10, **more: Any) -> Row:
    return Row(on_text, "text", {"attack": attack, "options": {}, "tokens": 8, "sentences": sentences, **more}, "sentences")


def spear_row(
    width: int, batches: Sequence[int] = (8, 16, 24, 32, 48), noise: Sequence[float] = (0.0,), starts: int = 1280
) -> Row:
    config = {"width": width, "batches": list(batches), "noise": list(noise), "messages": 2}
    return Row(spear, "spear", {**config, "options": {"most": 64, "starts": starts}}, "digits")


def clients_row(run: dict[str, Any], *attacks: dict[str, Any], draws: int = 3) -> Row:
    config = {"run": run, "attacks": [ANALYTIC, IMPRINT, *attacks], "draws": list(range(draws))}
    return Row(on_clients, "clients", config, "digits")


ANALYTIC: dict[str, Any] = {"attack": "analytic", "options": {}}
IMPRINT: dict[str, Any] = {"attack": "imprint", "options": {}}
HIDDEN = [
    *({"noise": noise} for noise in (0.25, 0.5, 1.0, 1.25, 2.0, 5.0)),
    *({"noise": 1.25, "quiet": quiet} for quiet in (8, 16, 20, 24, 28, 32, 48)),
    *({"noise": 1.5, "quiet": quiet} for quiet in (16, 24, 32)),
]
"""Levels of noise that might hide an imprint from the client's check."""
TRAINING: dict[str, dict[str, Any]] = {
    "one-step": {"train.local_steps": 1, "train.batch_size": 1000},
    "1-epoch": {"train.local_epochs": 1},
    "5-epochs": {"train.local_epochs": 5},
    "20-epochs": {"train.local_epochs": 20},
    "momentum": {"train.local_epochs": 5, "train.momentum": 0.9},
    "fast": {"train.local_epochs": 5, "train.lr": 0.1},
    "one-step-larger": {"train.local_steps": 1, "train.batch_size": 1000, "data.clients": 3, "data.limit": 1100},
    "5-epochs-larger": {"train.local_epochs": 5, "data.clients": 3, "data.limit": 1100},
}
FURTHER: dict[str, list[dict[str, Any]]] = {
    name: [{**IMPRINT, "together": True}, *({**IMPRINT, "options": options} for options in HIDDEN)]
    for name in ("fedavg-one-step", "fedavg-5-epochs")
}
MALICIOUS = {"download": "altered"}
LEARNED = {"top": "initial", "public": True}
WIDE = {"words": 1000, "width": 256}
ROWS = {
    **{f"spear-{width}": spear_row(width) for width in (512, 256, 128, 64)},
    "spear-noise": spear_row(512, (8, 16), (1e-3, 1e-2), 320),
    "analytic-epochs": Row(
        after_epochs,
        "honest",
        {
            "attack": "analytic", "options": {}, "width": 512, "images": 50, "messages": 4, "batch_size": 5, "epochs": [1, 10],
            "lr": 0.01,
        },
        "digits",
    ),
    "lti-noise": defended_row("learned-inversion", 40, {}, LEARNED, noise=0.3),
    "dlg-noise": defended_row("dlg", 4, {"restarts": 1}, noise=0.3),
    "lti-pruned": defended_row("learned-inversion", 40, {}, LEARNED, kept=0.01),
    "dlg-pruned": defended_row("dlg", 4, {"restarts": 1}, kept=0.01),
    "imprint-16": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, per_message=16),
    "imprint-16-noise": image_row("imprint", {"noise": 1.25}, MALICIOUS, net="rectified twice", images=64, per_message=16),
    "imprint-16-quiet": image_row(
        "imprint", {"noise": 1.25, "quiet": 500}, MALICIOUS, net="rectified twice", images=64, per_message=16
    ),
    "imprint-64": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, per_message=64),
    "tokens": text_row("tokens"),
    "span": text_row("span"),
    "tag": text_row("tag"),
    "dager-batch-8": text_row("span", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-8": text_row("token-imprint", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-32": text_row("token-imprint", 32, batch=32, net=WIDE, masked="embeddings"),
    "dager-batch-16": text_row("span", 32, batch=16, net=WIDE, masked="embeddings"),
    "inverting-gradients": image_row("inverting-gradients", {"steps": 800}, images=5),
    "inverting-gradients-mlp": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=5),
    "inverting-gradients-batch-4": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=4, per_message=4),
    "unrolled": image_row("unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, steps=4),
    "unrolled-batch-4": image_row(
        "unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, per_message=4, steps=4
    ),
    "dlg": image_row("dlg", {"restarts": 1}, images=5),
    "idlg": image_row("idlg", {"restarts": 1}, images=5),
    "head-free": image_row("head-free", {"restarts": 0}, images=5, masked=1),
    "known-head": image_row("known-head", {"restarts": 1}, {"top": "initial"}, images=5, masked=1),
    "fishing": image_row("fishing", {}, MALICIOUS, images=16, per_message=8),
    "dlg-batch-4": image_row("dlg", {"restarts": 1}, images=4, per_message=4),
    **{
        f"{method}-{name}": clients_row({"method": method, "seed": SEED, **run}, *FURTHER.get(f"{method}-{name}", ()))
        for name, run in TRAINING.items()
        for method in ("mpfedcon", "fedavg")
    },
}  # fmt: skip
