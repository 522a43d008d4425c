"""``fedpriv models``: list the nets, with the size of each role."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.listing import Rows, listed
from fedpriv.cli.terminal import ruled_table, styled
from fedpriv.untrusted.names import shape_text

_OF_TEXTS = (
    "Texts: model transformer, with any transformers encoder by hub name or folder, minilm or tiny (--encoder); --tune selects "
    "what is trained.\n"
    "Image-text pairs: model fusion, with such an encoder and an image encoder (model.backbone): any torchvision classifier, "
    "efficientnet_lite0 (from the extra perceptual), or a net above without pretrained weights."
)


def _width_or_none(_context: click.Context, _parameter: click.Parameter, value: str) -> int | None:
    if value.lower() in ("none", "null"):  # as in a config
        return None
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither a positive whole number nor 'none'")


@command(main, "models")
@click.option(
    "--projection", default="128", show_default=True, metavar="K|none", callback=_width_or_none, help="Width of the projector."
)
def models(projection: int | None) -> dict[str, Any]:
    """List the nets, with parameters and bytes per role.

    Sizes are for the input shape of the net's source. A method sends some roles and keeps the others on the client; these are
    the bytes of one transfer of each role.

    \b
    Example: fedpriv models --json
    """
    rows = listed("models", projection, compute=partial(_all, projection))
    shown = [role for role in rows["models"][0]["parameters"] if any(row["parameters"][role] for row in rows["models"])]
    table = ruled_table(caption="parameters, and MB (10^6 bytes) in float32 with buffers")
    for column in ("net", "input, classes"):
        table.add_column(column, no_wrap=True)
    for column in shown:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows["models"]:
        cells = [(row["parameters"][role], row["bytes"][role]) for role in shown]
        texts = [
            styled(f"{parameters:,}\n", (f"{size / 1e6:.3f} MB", "dim")) if parameters else "-" for parameters, size in cells
        ]
        table.add_row(row["name"], f"{shape_text(row['input_shape'])}, {row['classes']}", *texts)
    console().print(table)
    console().print(_OF_TEXTS)
    return rows


def _all(projection: int | None) -> Rows:
    import torch

    from fedpriv.models import build_model, describe, list_models

    rows: list[dict[str, Any]] = []
    for spec in list_models():
        with torch.device("meta"):  # shapes without memory: counting needs no values
            sizes = describe(build_model(spec.name, spec.input_shape, spec.classes, projection))
        rows.append(
            {
                "name": spec.name,
                "source": spec.source,
                "input_shape": list(spec.input_shape),
                "smallest": spec.smallest,
                "classes": spec.classes,
                "projection": projection,
                "parameters": {size.role: size.parameters for size in sizes},
                "bytes": {size.role: size.bytes for size in sizes},
            }
        )
    return {"models": rows}
