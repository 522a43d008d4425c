"""``fedpriv attack``: what can be reconstructed from one gradient step, and ``fedpriv attacks``: by what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, png
from fedpriv.errors import FedprivError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from attacks.lab import Attempt


@command(main, "attack")
@click.argument("name", metavar="ATTACK")
@click.option("--mask-layers", type=click.IntRange(0, 3), default=0, show_default=True, help="Hide the last N linear layers.")
@click.option("--n", "count", type=click.IntRange(1), default=20, show_default=True, help="Number of images, one step each.")
@click.option("--dataset", help="Test images of a data set, or a path of images; default: crops of two photographs.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder with <name>/{train,test}.parquet (or set FEDPRIV_DATA)."
)
@click.option("--set", "assignments", multiple=True, metavar="OPTION=VALUE", help="An option of the attack; repeatable.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of net, labels and starts.")
@click.option("--output", type=click.Path(path_type=Path), callback=png, help="Draw originals and reconstructions as a PNG.")
def attack(
    name: str,
    mask_layers: int,
    count: int,
    dataset: str | None,
    data_dir: Path | None,
    assignments: tuple[str, ...],
    seed: int,
    output: Path | None,
) -> dict[str, Any]:
    """Reconstruct images from one gradient step each.

    The victim is the sigmoid LeNet of DLG with as many linear layers as are masked, all parameters U(-0.5, 0.5): the setting of
    the papers. With a mask every attacker that can be tried is reported; a defence is as good as the best of them. Controls run
    first: where an attack fails at what it must do, or finds something in noise, nothing is reported and the exit code is 1.

    \b
    Example: fedpriv attack dlg --mask-layers 2 --n 8 --output dlg.png
             fedpriv attack idlg --dataset cifar10 --data-dir data --set restarts=2
    """
    from attacks.baselines import baselines
    from attacks.lab import attackers, attempt, observations, run_controls
    from attacks.scores import mse
    from fedpriv.config import parse_assignment

    out = console()
    try:
        chosen = attackers(name, mask_layers, dict(parse_assignment(text) for text in assignments))
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None
    images, labels, classes = _images(dataset, data_dir, count, seed)
    controls = [control for attacker in chosen for control in run_controls(attacker, seed)]
    for control in controls:
        out.print(f"control ({control.name}): {control.sentence}", soft_wrap=True, markup=False)
    if failed := [control.sentence for control in controls if not control.passed]:
        raise FedprivError(f"a control failed, so nothing can be said: {failed[0]}")
    attempts = []
    for attacker in chosen:
        out.print(f"{attacker.name}: {'; '.join(attacker.threat.sentences())}", soft_wrap=True, markup=False)
        observed = observations(images, labels, attacker.threat, mask_layers, classes, seed)
        attempts.append(attempt(attacker, observed, images, labels, seed))
    guesses = {guess: mse(made, images) for guess, made in baselines(images).items()}
    out.print(_table(attempts, guesses, mask_layers, len(images)))
    if output:
        from fedpriv.audit.pictures import draw_grid

        draw_grid({"original": images} | {a.attacker.name: a.found.images for a in attempts if a.found is not None}, output)
        out.print(f"drawn: {output}", soft_wrap=True, markup=False)
    return {
        "attack": name,
        "images": len(images),
        "mask_layers": mask_layers,
        "seed": seed,
        "attackers": [_figures(attempt, len(images)) for attempt in attempts],
        "baselines": {guess: {"mse_median": float(error.median())} for guess, error in guesses.items()},
        "controls": [vars(control) for control in controls],
    }


@command(main, "attacks")
def attacks() -> dict[str, Any]:
    """List the attacks and their options.

    \b
    Example: fedpriv attacks --json
    """
    from dataclasses import fields

    from rich import box
    from rich.table import Table

    from attacks.registry import image_attacks

    rows = []
    for name, kind in image_attacks().items():
        about = (kind.__doc__ or "").partition("\n")[0]
        options = [{"name": f.name, "default": f.default} for f in fields(kind)]  # type: ignore[arg-type]
        rows.append({"name": name, "about": about, "options": options})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "what it does", "options (default)"):
        table.add_column(column, overflow="fold")
    for row in rows:
        shown = ", ".join(f"{option['name']}={option['default']}" for option in row["options"])  # type: ignore[index]
        table.add_row(str(row["name"]), str(row["about"]), shown)
    console().print(table)
    return {"attacks": rows}


def _images(dataset: str | None, data_dir: Path | None, count: int, seed: int) -> tuple[Tensor, Tensor, int]:
    """Images ``(n, C, H, W)`` in [0, 1], labels ``(n,)`` and the number of classes."""
    import torch

    from attacks.images import default_images

    if dataset is None:
        try:
            return *default_images(count, seed), 10
        except ValueError as error:
            raise UsageError(f"--n {count}: {error}") from None
    from fedpriv.data.sources import load_dataset

    found = load_dataset(dataset, data_dir)
    if count > len(found.test_images):
        raise UsageError(f"--n {count}: {dataset} has {len(found.test_images)} test images")
    order = torch.randperm(len(found.test_images), generator=torch.Generator().manual_seed(seed))[:count]
    return found.test_images[order].float() / 255, found.test_labels[order], len(found.classes)


def _figures(attempt: Attempt, n: int) -> dict[str, Any]:
    said: dict[str, Any] = {"attacker": attempt.attacker.name, "threat": vars(attempt.attacker.threat)}
    if attempt.found is None or attempt.scores is None:
        return said | {"inapplicable": attempt.inapplicable}
    scores, found = attempt.scores, attempt.found
    return said | {
        "success": {f"{limit:g}": vars(rate) | {"share": rate.share} for limit, rate in scores.recovered.items()},
        "label_accuracy": None if scores.labels is None else scores.labels.share,
        "mse_median": float(scores.mse.median()),
        "mse_best": float(scores.mse.min()),
        "psnr_median_db": float(scores.psnr.median()),
        "ssim_median": float(scores.ssim.median()),
        "cpu_seconds": found.cpu_seconds,
        "images_per_cpu_second": n / found.cpu_seconds if found.cpu_seconds else None,
    }


def _table(attempts: list[Attempt], guesses: dict[str, Tensor], masked: int, n: int) -> Any:
    from rich.table import Table

    title = f"{n} images, {f'the last {masked} linear layers masked' if masked else 'nothing masked'}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("attacker")
    for column in ("MSE < 1e-2 [95 %]", "< 1e-3", "labels", "median MSE", "best", "SSIM", "CPU s"):
        table.add_column(column, justify="right")
    for attempt in attempts:
        scores, found = attempt.scores, attempt.found
        if scores is None or found is None:
            table.add_row(attempt.attacker.name, f"not mounted: {attempt.inapplicable}")
            continue
        rate, closer = scores.recovered[1e-2], scores.recovered[1e-3]
        table.add_row(
            attempt.attacker.name,
            f"{rate.successes} of {rate.n} [{rate.low:.0%}, {rate.high:.0%}]",
            str(closer.successes),
            "–" if scores.labels is None else f"{scores.labels.successes} of {n}",
            f"{float(scores.mse.median()):.1e}",
            f"{float(scores.mse.min()):.1e}",
            f"{float(scores.ssim.median()):.2f}",
            f"{found.cpu_seconds:.0f}",
        )
    for guess, error in guesses.items():
        table.add_row(f"[dim]{guess}[/]", f"{int((error < 1e-2).sum())} of {n}", "", "", f"{float(error.median()):.1e}",
                      f"{float(error.min()):.1e}", "", "")  # fmt: skip
    return table
