"""The project's attackers beside published figures.

    python experiments/attacks/table.py [--only NAME] [--jobs N] [--images cifar10 --data-dir DATA]
    python experiments/attacks/table.py --report

A row's result is stored as results/IMAGES/NAME.json as soon as it is there; a row whose result has the same config is not run
again. The report is made from these results and from published.yaml.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import click
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.registry import image_attack
from fedpriv.attacks.core.text_registry import MaliciousTextAttack, text_attack
from fedpriv.attacks.gradients.local_run import local_run
from fedpriv.attacks.lab.attempts import Attacker, attempt
from fedpriv.attacks.lab.controls import alteration
from fedpriv.attacks.lab.nets import observe, perceptron
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.scoring.baselines import nearest
from fedpriv.attacks.scoring.scores import RECOVERED, mse, wilson
from fedpriv.attacks.scoring.text_scores import score_text
from fedpriv.attacks.text.victims import Size, facts, observe_text, sentences, small_bert
from fedpriv.data.sources import load_dataset
from fedpriv.errors import FedprivError
from fedpriv.experiments.markdown import bullets, table
from fedpriv.files import write_atomically
from fedpriv.server.run_folder import git_commit, versions

HERE = Path(__file__).parent
IMAGES = ("photographs", "cifar10")
"""Of the rows on colour images: crops of scikit-learn's photographs (no data set needed), or CIFAR-10's test images."""
SEED = 0


@dataclass(frozen=True)
class Row:
    """A row: what is measured, and how.

    Attributes:
        measure: the config, and the name of the images -> results, one a cell.
        group: the table of the report in which it is.
        data: ``None``: the images that the command names.
    """

    measure: Callable[[dict[str, Any], str], list[dict[str, Any]]]
    group: str
    config: dict[str, Any]
    data: str | None = None


def on_images(config: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """An attack on messages of victims of its own for each, in the nets of the attacks' controls."""
    setting = Setting(**{**config["setting"], "threat": ThreatModel(**config.get("threat", {}))})
    images, labels = setting.truth(SEED)
    if source == "cifar10":
        pool = load_dataset("cifar10").images[1]  # type: ignore[index]
        chosen = torch.randperm(len(pool), generator=torch.Generator().manual_seed(SEED))[: len(images)]
        images = pool[chosen] / 255
    attack = image_attack(config["attack"])(**config["options"])
    pairs = zip(images.split(setting.at_once), labels.split(setting.at_once), strict=True)
    alter = alteration(attack)
    observed = [one for i, pair in enumerate(pairs) for one in setting.observations(*pair, SEED + i, alter)]
    facts = {"net": setting.net, "size": setting.side, "batch": setting.at_once, "steps": setting.steps or 1}
    return [facts | tried(attack, setting.threat, observed, images, labels, config["attack"] == "fishing")]


def tried(
    attack: Any,
    threat: ThreatModel,
    observed: Sequence[Observation],
    images: Tensor,
    labels: Tensor,
    aimed: bool = False,
    together: bool = False,
) -> dict[str, Any]:
    """Mount an attack on each message ``(N,)``; images that it refuses are not recovered.

    Args:
        aimed: only the images count that the attack aims at, which are those that it does not leave grey.
        together: all messages at once.
    """  # fmt: skip
    began, errors, refused, n = time.process_time(), list[float](), list[str](), 0
    groups = [observed] if together else [[one] for one in observed]
    size = len(images) // len(groups)
    for group, some, own in zip(groups, images.split(size), labels.split(size), strict=True):
        found = attempt(Attacker(attack, threat), group, some, own, SEED)
        if found.scores is None or found.images is None:
            refused.append(str(found.inapplicable))
            n += 1 if aimed else size
            continue
        counted = (found.images != 0.5).flatten(1).any(1) if aimed else torch.ones(size, dtype=torch.bool)
        errors += found.scores.mse[counted].tolist()
        n += int(counted.sum())
    recovered = sum(error < RECOVERED for error in errors)
    seconds = round(time.process_time() - began, 2)
    return {
        "n": n,
        "recovered": recovered,
        "mse": [float(f"{e:.4g}") for e in errors],
        "refused": refused,
        "cpu_seconds": seconds,
    }


def defended(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on digits, each behind one gradient of one net, under noise or pruning that the attacker knows."""
    setting = Setting(kind="digits", side=8, images=config["images"], threat=ThreatModel(**config["threat"]))
    images, labels = setting.truth(SEED)
    observed = setting.observations(images, labels, SEED)
    flat = torch.stack([torch.cat([tensor.flatten() for tensor in one.shared.values()]) for one in observed])
    draw, altered = torch.Generator().manual_seed(SEED), list[Observation]()
    if noise := config.get("noise"):
        sigma = noise * float(flat.norm(dim=1).median()) / flat.shape[1] ** 0.5
        says = f"noise of {noise:g} of the gradient's norm"
        for one in observed:
            shared = {name: t + sigma * torch.randn(t.shape, generator=draw) for name, t in one.shared.items()}
            altered.append(replace(one, shared=shared, altered=Altered(variance=dict.fromkeys(shared, sigma**2))))
    else:
        says = f"{config['kept']:.0%} of the entries sent"
        least = flat.abs().topk(round(config["kept"] * flat.shape[1])).values[:, -1]
        for one, limit in zip(observed, least, strict=True):
            kept = {name: t.abs() >= limit for name, t in one.shared.items()}
            altered.append(replace(one, shared={n: t * kept[n] for n, t in one.shared.items()}, altered=Altered(kept=kept)))
    attack = image_attack(config["attack"])(**config["options"])
    facts = {"net": f"reference, {says}", "size": 8, "batch": 1, "steps": 1}
    copies = int((mse(nearest(images, setting.rest(SEED).images), images) < RECOVERED).sum())
    return [facts | tried(attack, setting.threat, altered, images, labels, together=True) | {"copies": copies}]


def digits(n: int, at: int) -> tuple[Tensor, Tensor]:
    """The ``at``-th ``n`` of scikit-learn's digits ``(n, 1, 8, 8)`` in [0, 1], in a random order, and their labels."""
    data = load_dataset("digits")
    assert data.images is not None
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(SEED))[at * n : (at + 1) * n]
    return data.images[0][order] / 255, data.train_labels[order]


def rectified(width: int, seed: int) -> Any:
    """64 -> width -> 64 -> 10 with ReLU and without BatchNorm."""
    return perceptron(seed, channels=1, height=8, width=8, hidden=width, activation=nn.ReLU, then=64)


def spear(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """SPEAR by batch and by noise, whose variance the attacker knows."""
    attack, cells = image_attack("spear")(**config["options"]), []
    for batch in config["batches"]:
        for noise in config["noise"]:
            observed, truth = [], [digits(batch, i) for i in range(config["messages"])]
            for i, (images, labels) in enumerate(truth):
                one = observe(rectified(config["width"], SEED + i), images, labels)
                if noise:
                    sigma, draw = noise * float(one.shared["body.1.weight"].std()), torch.Generator().manual_seed(SEED + i)
                    shared = {name: t + sigma * torch.randn(t.shape, generator=draw) for name, t in one.shared.items()}
                    one = replace(one, shared=shared, altered=Altered(variance=dict.fromkeys(shared, sigma**2)))
                observed.append(one)
            images, labels = (torch.cat(parts) for parts in zip(*truth, strict=True))
            says = {"net": f"MLP 64-{config['width']}-64-10", "size": 8, "batch": batch, "steps": 1, "noise": noise}
            cells.append(says | tried(attack, ThreatModel(), observed, images, labels))
    return cells


def after_epochs(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on the change of the weights over epochs of SGD."""
    attack, cells, n, size = image_attack(config["attack"])(**config["options"]), [], config["images"], config["batch_size"]
    for epochs in config["epochs"]:
        observed, truth = [], [digits(n, i) for i in range(config["messages"])]
        for i, (images, labels) in enumerate(truth):
            one = observe(rectified(config["width"], SEED + i), images, labels)
            schedule = Schedule(lr=config["lr"], steps=epochs * -(-n // size), batch_size=size)
            target = F.one_hot(labels, 10).float()
            change = local_run(one.net, one.weights, list(one.shared), images, target, schedule)
            observed.append(replace(one, kind="change", shared={k: t.detach() for k, t in change.items()}, schedule=schedule))
        images, labels = (torch.cat(parts) for parts in zip(*truth, strict=True))
        says = {"net": f"MLP 64-{config['width']}-64-10", "size": 8, "batch": n, "steps": schedule.steps}
        cells.append(says | tried(attack, ThreatModel(), observed, images, labels))
    return cells


def on_text(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on gradients of a batch of random sentences; a sentence counts as recovered if every token is right."""
    size, batch, masked = Size(**config.get("net", {})), config.get("batch", 1), config.get("masked")
    ids, began = sentences([config["tokens"]] * config["sentences"], SEED, size), time.process_time()
    labels = torch.arange(len(ids)) % size.classes
    pairs = enumerate(zip(ids.split(batch), labels.split(batch), strict=True))
    attack = text_attack(config["attack"])(**config["options"])
    observed = [observe_text(_altered(attack, SEED + i, size, config["tokens"]), *pair, facts(size)) for i, pair in pairs]
    observed = [replace(one, shared={n: t for n, t in one.shared.items() if not masked or masked not in n}) for one in observed]
    scores = score_text(attack.run(observed, SEED), ids, labels, facts(size))
    whole = int((scores.multiset_recall == 1).sum()) if scores.exact is None else scores.exact.successes
    return [
        {
            "net": f"BERT of {size.layers} layers, width {size.width}, {size.words} words, random weights",
            "size": config["tokens"], "batch": batch, "steps": 1,
            "n": len(scores.recall) if scores.exact is None else len(ids), "recovered": whole,
            "recall": round(float(scores.recall.mean()), 4),
            "rouge": None if scores.rouge is None else round(float(scores.rouge.mean()), 4),
            "cpu_seconds": round(time.process_time() - began, 2),
        }
    ]  # fmt: skip


def _altered(attack: Any, seed: int, size: Size, tokens: int) -> Any:
    """The net that the client is sent; a malicious server knows 200 other sentences."""
    net, others = small_bert(seed, size), sentences([tokens] * 200, SEED + 1, size)
    if isinstance(attack, MaliciousTextAttack):
        honest = observe_text(net, others[:1], torch.zeros(1, dtype=torch.long), facts(size))
        net.load_state_dict(attack.alter(honest, others, seed), strict=False)
    return net


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
    "imprint-16": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, at_once=16),
    "imprint-16-noise": image_row("imprint", {"noise": 1.25}, MALICIOUS, net="rectified twice", images=64, at_once=16),
    "imprint-16-quiet": image_row(
        "imprint", {"noise": 1.25, "quiet": 500}, MALICIOUS, net="rectified twice", images=64, at_once=16
    ),
    "imprint-64": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, at_once=64),
    "tokens": text_row("tokens"),
    "span": text_row("span"),
    "tag": text_row("tag"),
    "dager-batch-8": text_row("span", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-8": text_row("token-imprint", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-32": text_row("token-imprint", 32, batch=32, net=WIDE, masked="embeddings"),
    "dager-batch-16": text_row("span", 32, batch=16, net=WIDE, masked="embeddings"),
    "inverting-gradients": image_row("inverting-gradients", {"steps": 800}, images=5),
    "inverting-gradients-mlp": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=5),
    "inverting-gradients-batch-4": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=4, at_once=4),
    "unrolled": image_row("unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, steps=4),
    "unrolled-batch-4": image_row("unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, at_once=4, steps=4),
    "dlg": image_row("dlg", {"restarts": 1}, images=5),
    "idlg": image_row("idlg", {"restarts": 1}, images=5),
    "head-free": image_row("head-free", {"restarts": 0}, images=5, masked=1),
    "known-head": image_row("known-head", {"restarts": 1}, {"top": "initial"}, images=5, masked=1),
    "fishing": image_row("fishing", {}, MALICIOUS, images=16, at_once=8),
    "dlg-batch-4": image_row("dlg", {"restarts": 1}, images=4, at_once=4),
}  # fmt: skip


def stored(folder: Path, name: str, images: str) -> Path:
    return folder / (ROWS[name].data or images) / f"{name}.json"


def is_done(path: Path, name: str) -> bool:
    """Whether a result of the row's present config is stored."""
    return path.exists() and json.loads(path.read_text())["config"] == ROWS[name].config


def run_row(name: str, images: str, folder: Path) -> str:
    """Measure a row and store its result; a line about it."""
    torch.set_num_threads(1)
    began, row, path = time.process_time(), ROWS[name], stored(folder, name, images)
    cells = row.measure(row.config, images)
    found = {
        "row": name, "group": row.group, "images": row.data or images, "config": row.config, "seed": SEED, "batch_norm": "none",
        "cells": cells, "cpu_seconds": round(time.process_time() - began, 2), "versions": versions(), "git_commit": git_commit(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
    return f"{name}: {sum(c['recovered'] for c in cells)} of {sum(c['n'] for c in cells)}, {found['cpu_seconds']:.0f} CPU s"


def psnr_of(cell: dict[str, Any]) -> str:
    """Median, and the best, in dB; refused messages leave no image."""
    if not cell["mse"]:
        return "–"
    values = [-10 * math.log10(max(mse, 1e-10)) for mse in cell["mse"]]
    return ", best ".join("over 100" if v > 99.9 else f"{v:.1f}" for v in (statistics.median(values), max(values)))


def share(cell: dict[str, Any]) -> str:
    rate = wilson(cell["recovered"], cell["n"])
    copies = f"; copies of public images: {cell['copies']}" if "copies" in cell else ""
    return f"{rate.successes} of {rate.n} ({100 * rate.low:.0f}–{100 * rate.high:.0f} %{copies})"


def render(folder: Path, published: dict[str, Any]) -> str:
    """The report of the stored results whose config is that of a row."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/*.json"))]
    found = [one for one in found if one["row"] in ROWS and one["config"] == ROWS[one["row"]].config]
    order = list(ROWS)
    found.sort(key=lambda one: (order.index(one["row"]), one["images"]))
    parts = [
        "# The attackers beside published figures",
        "Written by `python experiments/attacks/table.py --report`; edit published.yaml, not this file.",
        *published["meaning"],
        "An image is recovered where its mean squared error, clipped to [0, 1], is below 1e-2. In brackets: the 95 % Wilson "
        "interval, as if images were independent; those behind one message are not. Each message has a net of its own, but as "
        "noted. PSNR: of all images, the median and the best. No net here has BatchNorm. CPU seconds: one thread, on a machine "
        "with other jobs.",
    ]
    images = "row | images | net | pixels a side | behind a message | local steps | BatchNorm | recovered | PSNR, dB | CPU s"

    def lines(group: str) -> list[list[Any]]:
        return [
            [one["row"], one["images"], c["net"], c["size"], c["batch"], c["steps"], one["batch_norm"], share(c), psnr_of(c),
             f"{c['cpu_seconds']:.1f}"] for one in found if one["group"] == group for c in one["cells"]
        ]  # fmt: skip

    parts += ["## An honest server, images", table(images, lines("honest"))]
    grid = [
        [c["net"], c["batch"], f"{c['noise']:g}", one["batch_norm"], share(c), psnr_of(c), len(c["refused"]),
         f"{c['cpu_seconds']:.1f}"] for one in found if one["group"] == "spear" for c in one["cells"]
    ]  # fmt: skip
    parts += [
        "## SPEAR on digits (8x8 pixels, one step)",
        table(
            "net | batch | noise, of the gradient's deviation | BatchNorm | recovered | PSNR, dB | messages refused | CPU s", grid
        ),
        "## A malicious server, images",
        "Another threat model: the server alters the weights that it sends. Of `fishing`, the images count that it aims at, one "
        "in each message.",
        table(images, lines("malicious")),
    ]
    text = [
        [one["row"], c["net"], c["size"], c["batch"], one["batch_norm"], f"{100 * c['recall']:.0f} %",
         "no order" if c["rouge"] is None else f"{c['rouge']:.2f}", share(c), f"{c['cpu_seconds']:.1f}"]
        for one in found if one["group"] == "text" for c in one["cells"]
    ]  # fmt: skip
    head = "row | net | tokens, two of them special | sentences a message | BatchNorm | tokens found | ROUGE-L | whole | CPU s"
    parts += [
        "## Text",
        "`whole`: sentences with every token in order; where the attack finds no order, messages with every token. "
        "`token-imprint` is of a malicious server.",
        table(head, text),
    ]
    rows = [
        [p["what"], p["setting"], p["figure"], p["source"], ", ".join(p["beside"]) or "–", p["differs"]]
        for p in published["published"]
    ]
    parts += [
        "## Published figures",
        "As their sources state them; none was run here.",
        table("attack | setting | figure | source | our rows | what differs", rows),
        "## Notes",
        bullets(published["notes"]),
    ]
    if missing := [name for name in ROWS if name not in {one["row"] for one in found}]:
        parts.append(f"Rows without a result: {', '.join(missing)}.")
    commits = sorted({str(one["git_commit"]) for one in found})
    seconds = sum(one["cpu_seconds"] for one in found)
    parts.append(
        f"{len(found)} results, {seconds / 60:.0f} CPU minutes in all. Commits: {', '.join(commits) or '–'}. Seed {SEED}."
    )
    return "\n\n".join(" ".join(part.split("\n")) if "|" not in part and "* " not in part else part for part in parts) + "\n"


def write_report(folder: Path, report: Path) -> None:
    write_atomically(report, render(folder, yaml.safe_load((HERE / "published.yaml").read_text())).encode())


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="A row; may be repeated. Default: all.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes, of one thread each.")
@click.option("--images", type=click.Choice(IMAGES), default=IMAGES[0], help="Colour images.")
@click.option("--data-dir", type=click.Path(file_okay=False), envvar="FEDPRIV_DATA", help="Folder with cifar10/test.parquet.")
@click.option("--report", "only_report", is_flag=True, help="Run nothing; write REPORT.md from the stored results.")
@click.option("--folder", type=click.Path(path_type=Path), default=HERE, help="Where results/ and REPORT.md lie.")
def main(only: tuple[str, ...], jobs: int, images: str, data_dir: str | None, only_report: bool, folder: Path) -> None:
    """Run the rows that have no result yet, then write REPORT.md."""
    if data_dir:
        os.environ["FEDPRIV_DATA"] = data_dir
    results = folder / "results"
    names = [] if only_report else [name for name in only or ROWS if not is_done(stored(results, name, images), name)]
    try:
        if jobs == 1:
            for name in names:
                click.echo(run_row(name, images, results))
        else:
            with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
                for line in pool.map(run_row, names, [images] * len(names), [results] * len(names)):
                    click.echo(line)
    except FedprivError as error:
        raise click.exceptions.Exit(_say(error)) from None
    finally:
        write_report(results, folder / "REPORT.md")


def _say(error: FedprivError) -> int:
    click.echo(f"Error: {error}", err=True)
    return cast(int, error.exit_code)


if __name__ == "__main__":
    main()
