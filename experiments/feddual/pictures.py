"""FedDUAL's pictures with numbers: the loss around final models (Figs. 1 and 6), and the clients' gradients by layer (Fig. 2).

    python experiments/feddual/pictures.py --data-dir DATA

Reads the run folders that table1.yaml and iid.yaml leave under runs/experiments/feddual, and writes JSON and PNG into
experiments/feddual/pictures. The norm of a client's summed loss is that of its mean loss times its number of samples.
A model whose numbers are there is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from fedpriv.experiments.pictures.gradient_norms import gradient_norms
from fedpriv.experiments.pictures.landscape import SampleLoss, filter_direction, rises, surface, top_eigenvalue
from fedpriv.methods.base import ServerState
from fedpriv.plots import PALETTE, save
from fedpriv.seeding import generator
from fedpriv.server.sampling import participants
from fedpriv.simulation.reopening import reopened
from fedpriv.simulation.setup import Federation
from fedpriv.storage.run_folder import RunFolder

MODELS = {"FedAvg, even": "iid/fedavg-s0", "FedAvg, skewed": "table1/fedavg-s0", "FedDUAL, skewed": "table1/feddual-s0"}
EVEN, SKEWED = list(MODELS)[:2]
PAIRS, RADII = 12, (0.25, 0.5, 1.0)


def load(folder: RunFolder) -> tuple[Federation, ServerState, int]:
    """A finished run: its federation, its final server model, and its number of rounds."""
    federation = reopened(folder)
    weights = load_file(folder.weights / "server.safetensors")
    row = federation.resident.space.pack(weights, federation.initial.clone())
    return federation, ServerState(row), federation.config.train.rounds


def around(federation: Federation, row: torch.Tensor, grid: int, samples: int) -> dict[str, Any]:
    """The numbers of one model; the samples and the seeds of the directions are the same for all of them."""
    space = federation.resident.space
    losses = {}
    for pool in ("server", "train"):
        size = len(federation.data.labels(pool))
        chosen = torch.randperm(size, generator=generator(0, pool))[:samples]
        losses[pool] = SampleLoss(federation.resident, *federation.data.pick(pool, chosen))
    loss = losses["server"]
    directions = [filter_direction(space, row, generator(0, "direction", i)) for i in range(2 * PAIRS)]
    steps = torch.linspace(-1, 1, grid).tolist()
    eigenvalue, products = top_eigenvalue(lambda v: loss.curvature(row, v), directions[0])
    return {
        "test_loss": loss(row),
        "train_loss": losses["train"](row),
        "rises": [asdict(rise) for rise in rises(loss, row, list(pairwise(directions))[::2], RADII)],
        "top_eigenvalue": eigenvalue,
        "hessian_products": products,
        "steps": steps,
        "surface": surface(loss, row, (directions[0], directions[1]), steps),
    }


def draw_landscape(found: dict[str, Any], path: Path) -> None:
    """The surfaces side by side on one colour scale, the rises below."""
    highest = max(max(map(max, model["surface"])) for model in found.values())
    lowest = min(min(map(min, model["surface"])) for model in found.values())
    levels = torch.logspace(torch.log10(torch.tensor(lowest)), torch.log10(torch.tensor(highest)), 22).tolist()

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(found) + 1, width_ratios=[*[1] * len(found), 1.15])
        for ax, (label, model) in zip(axes, found.items(), strict=False):
            ax.contourf(model["steps"], model["steps"], model["surface"], levels=levels, cmap="viridis", norm="log")
            lines = ax.contour(
                model["steps"], model["steps"], model["surface"], levels=levels[::3], colors="white", linewidths=0.7
            )
            ax.clabel(lines, fmt="%.2g", fontsize=9)
            ax.plot(0, 0, "+", color="white", markersize=11)
            ax.set_title(label)
            ax.set_xlabel(f"test loss {model['test_loss']:.3f}, top curvature {model['top_eigenvalue']:.1f}")
            ax.set_aspect("equal")
            ax.set_xticks([-1, 0, 1])
            ax.set_yticks([-1, 0, 1])
            ax.grid(False)
        for (label, model), color in zip(found.items(), PALETTE, strict=False):
            radii = [0.0, *(rise["radius"] for rise in model["rises"])]
            axes[-1].plot(radii, [0.0, *(rise["mean"] for rise in model["rises"])], "o-", color=color, label=label)
            spread = [[0.0], *(sorted(rise["per_pair"]) for rise in model["rises"])]
            axes[-1].fill_between(radii, [s[0] for s in spread], [s[-1] for s in spread], color=color, alpha=0.15, linewidth=0)
        axes[-1].set_title(f"Rise, {PAIRS} planes")
        axes[-1].set_xlabel("radius, in lengths of the filters")
        axes[-1].set_ylabel("mean rise of the loss (nats)")
        axes[-1].set_xticks([0, *RADII])
        axes[-1].set_ylim(bottom=0)
        axes[-1].legend(loc="upper left")

    save(draw, path, (18, 5))


def draw_norms(found: dict[str, Any], path: Path) -> None:
    """The mean norm per tensor, even beside skewed, at the received and at the trained model."""

    def draw(figure: Figure) -> None:
        for ax, when in zip(figure.subplots(1, 2, sharey=True), ("before", "after"), strict=True):
            for (label, one), color, shift in zip(found.items(), PALETTE, (-0.2, 0.2), strict=False):
                layers = one["layers"]
                heights = [sum(norms[when]) / len(norms[when]) for norms in layers.values()]
                ax.bar([i + shift for i in range(len(heights))], heights, 0.38, color=color, label=label)
            ax.set_xticks(range(len(layers)), [name.replace("encoder.", "") for name in layers], rotation=40, ha="right")
            ax.set_title(f"{when.capitalize()} local training")
        ax.legend(loc="upper left")
        figure.axes[0].set_ylabel("norm of the mean loss's gradient")

    save(draw, path, (14, 5.5))


@click.command()
@click.option("--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with <name>/{train,test}.parquet.")
@click.option("--grid", default=17, show_default=True, help="Points along each side of a surface.")
@click.option("--samples", default=2000, show_default=True, help="Images that the loss is measured on.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "pictures", help="Folder to write into.")
def main(runs_dir: Path, data_dir: Path | None, grid: int, samples: int, out: Path) -> None:
    """Compute and draw."""
    torch.set_num_threads(1)
    if data_dir is not None:
        os.environ["FEDPRIV_DATA"] = str(data_dir.absolute())
    out.mkdir(exist_ok=True)
    landscape, norms = (_read(out / f"{name}.json") for name in ("landscape", "gradient_norms"))
    for label, place in MODELS.items():
        folder = RunFolder.open(runs_dir / "experiments" / "feddual" / place)
        made_of = {"weights": digest(folder.weights / "server.safetensors"), "samples": samples, "grid": grid}
        if landscape.get(label, {}).get("made_of") == made_of:
            continue
        federation, server, rounds = load(folder)
        if label in (EVEN, SKEWED):
            clients = participants(federation.agreement, rounds)
            measured = gradient_norms(federation, server, clients, rounds + 1)
            sizes = [federation.data.size(client) for client in clients]
            norms[label] = {"samples": sizes, "layers": {name: asdict(norm) for name, norm in measured.items()}}
        landscape[label] = {"made_of": made_of, **around(federation, server.row, grid, samples)}
        click.echo(f"{label}: top curvature {landscape[label]['top_eigenvalue']:.2f}")
        for name, found in (("landscape", landscape), ("gradient_norms", norms)):
            (out / f"{name}.json").write_text(json.dumps(_rounded(found)) + "\n", encoding="utf-8")
    draw_landscape({label: landscape[label] for label in MODELS}, out / "landscape.png")
    draw_norms({label: norms[label] for label in (EVEN, SKEWED)}, out / "gradient_norms.png")


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
