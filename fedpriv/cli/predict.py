"""``fedpriv predict`` and ``fedpriv export``: the use of a run's final model."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, command, console, loading
from fedpriv.cli.terminal import FilePath, say

if TYPE_CHECKING:
    import pandas as pd

    from fedpriv.prediction.restored import FinalModel

_SUFFIXES = (".csv", ".parquet")
_CLIENT = click.option(
    "--client",
    help="Number of a client, or its name where clients come with the data: the client's own model. Default: the server's.",
)
_BEST = click.option("--best", is_flag=True, help="The model of the best round on validation data. Default: of the last round.")


def _table(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an ``--output`` that is a table: reject what cannot be written before anything is computed for it."""
    if path is None:
        return None
    if path.suffix.lower() not in _SUFFIXES:
        raise click.BadParameter(f"{path} is not the name of a .csv or .parquet file, such as {path.with_suffix('.csv').name}")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"cannot write {path}: there is no folder {path.absolute().parent}")
    return path


@command(main, "predict")
@click.argument("run_name", metavar="RUN")
@click.argument("file", type=FilePath())
@click.option(
    "--output",
    type=FilePath(dir_okay=False),
    callback=_table,
    metavar="FILE",
    help="A .csv or .parquet file. Default: print CSV.",
)
@_CLIENT
@_BEST
@click.option("--keep", multiple=True, metavar="COLUMN", help="Column of FILE to copy into the output; repeatable.")
@RUNS_DIR
def predict(
    run_name: str, file: Path, output: Path | None, client: str | None, best: bool, keep: tuple[str, ...], runs_dir: Path
) -> dict[str, Any]:
    """Predict the classes of new samples, or the numbers, by a run's final model, with the run's own preprocessing.

    FILE is a CSV or parquet file with the columns of the training data (others are ignored); an image, a folder of images or a
    table that has or names them; or a table or .txt file of texts. The training data are not needed.

    Each row has the predicted class (prediction) and a probability for each class, in the order of FILE; of a regression the
    predicted number, in the label's unit.

    \b
    Example: fedpriv predict runs/a patients.csv --keep patient --output predictions.csv
             fedpriv predict runs/a patients.csv --client 2
    """
    loading()
    from fedpriv.data.preprocessing.stored import PREDICTION

    name, final = _final(run_name, runs_dir, client, best)
    predictions = final.predict(file, _warn)
    if keep:
        predictions = _kept(file, keep, predictions)
    named = predictions.index.name is not None  # the files of images
    predicted: dict[str, float] = dict(Counter(predictions[PREDICTION]).most_common())
    if final.preprocessing.target is not None:
        predicted = predictions[PREDICTION].agg(["min", "mean", "max"]).to_dict()
    result = {"run": name, "rows": len(predictions), "predicted": predicted}
    if output is None:
        if click.get_current_context().meta["fedpriv.json"]:
            return {**result, "predictions": (predictions.reset_index() if named else predictions).to_dict("records")}
        say(predictions.to_csv(index=named).rstrip("\n"))
        return result
    _write(predictions.reset_index() if named else predictions, output)
    shown = ", ".join(f"{name} {number:,.6g}" for name, number in predicted.items())
    console().print(f"{len(predictions):,} predictions in {output}: {shown}", soft_wrap=True)
    return {**result, "output": str(output)}


@command(main, "export")
@click.argument("run_name", metavar="RUN")
@click.option("--output", type=FilePath(), required=True, metavar="PATH", help="A new .pt2 file, or a new folder for MLflow.")
@click.option(
    "--format", "format_", type=click.Choice(["pt2", "mlflow"]), default="pt2", show_default=True, help="What is written."
)
@_CLIENT
@_BEST
@RUNS_DIR
def export(run_name: str, output: Path, format_: Any, client: str | None, best: bool, runs_dir: Path) -> dict[str, Any]:
    """Write a run's final model for other programs.

    pt2 is a PyTorch program from the net's inputs to logits, or to numbers in the label's unit, which torch.export.load reads
    without fedpriv; it has the preprocessing as the extra file preprocessing.json. mlflow is a folder for
    `mlflow models predict` and `serve`, from raw samples to predictions.

    \b
    Example: fedpriv export runs/a --output model.pt2
             fedpriv export runs/a --format mlflow --output model && mlflow models serve -m model --env-manager local
    """
    loading()
    from fedpriv.prediction.exported import check_path, export_model

    check_path(output, format_)
    name, final = _final(run_name, runs_dir, client, best)
    export_model(final, output, format_)
    console().print(f"the model is in {output}", soft_wrap=True)
    return {"run": name, "format": format_, "output": str(output)}


def _final(run_name: str, runs_dir: Path, client: str | None, best: bool) -> tuple[str, FinalModel]:
    """The name of a run, and its final model, or that of its best round.

    Args:
        client: digits are a number.
    """
    from fedpriv.prediction.restored import final_model
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.tracking import find_run

    folder = RunFolder.open(find_run(run_name, runs_dir))
    number = int(client) if client is not None and client.isascii() and client.isdigit() else client
    final = final_model(folder, number, best)
    for note in final.notes:
        _warn(note)
    return folder.path.name, final


def _warn(text: str) -> None:
    say(f"fedpriv: {text}", err=True)


def _kept(file: Path, names: tuple[str, ...], predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions, with columns of the file before them as they are in it."""
    from fedpriv.data.preprocessing.rows import open_rows
    from fedpriv.errors import UsageError

    if file.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--keep is for columns of a table, and {file} is none")
    rows = open_rows(file)
    for place, name in enumerate(names):
        if name not in rows.names:
            raise UsageError(f"--keep: {file} has no column {name!r}; its columns are: {', '.join(rows.names)}")
        if name in predictions:
            raise UsageError(f"--keep: column {name!r} has the name of a column of the output")
        written = rows.written(name)
        predictions.insert(place, name, (rows.column(name) if written is None else written).to_pylist())
    return predictions


def _write(table: pd.DataFrame, output: Path) -> None:
    from fedpriv.errors import FedprivError
    from fedpriv.files import write_atomically

    content = io.BytesIO()
    if output.suffix.lower() == ".csv":
        table.to_csv(content, index=False)
    else:
        table.to_parquet(content, index=False)
    try:
        write_atomically(output, content.getvalue())
    except OSError as error:
        raise FedprivError(f"cannot write {output}: {error.strerror}") from None
