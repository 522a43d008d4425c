"""Logging the server's final model: a PyTorch model with a signature, from the file that the run exported."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MODEL = "weights/server.pt2"
_PARTS = {
    "classifier": "the server's final model, which gives class logits",
    "encoder": "the encoder of the server's final model, which gives features; the head never leaves the clients, or was not "
    "trained",
}


def send_model(client: MlflowClient, run: Run, file: Path, facts: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Log the model, so that ``mlflow.pytorch.load_model("runs:/<id>/model")`` loads the net, and ``mlflow models predict``
    takes raw rows or images. The file, which may come from elsewhere, is not opened; MLflow checks it when it loads it.

    Args:
        facts, summary: of the run; ``model`` in the summary describes the file.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    experiment, run_id, form = run.info.experiment_id, run.info.run_id, summary["model"]
    models = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    if any(model.status == LoggedModelStatus.READY for model in models):  # the acknowledgement was lost
        return
    about = f"{facts['method']} on {Path(facts['dataset']).name}: {_PARTS[form['part']]}. {_inputs(form)}"
    logged = client.create_logged_model(experiment, "model", run_id, model_type=form["part"], tags={"mlflow.note.content": about})
    with TemporaryDirectory() as folder:
        _write_model(Path(folder), file, form, about, facts, run_id, str(logged.model_id))
        client.log_model_artifacts(logged.model_id, folder)
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, summary["rounds"])])


def _write_model(
    folder: Path, file: Path, form: Mapping[str, Any], about: str, facts: Mapping[str, Any], run_id: str, model_id: str
) -> None:
    """Write MLflow's files of a model. A classifier of rows or images takes them as they are, any other model its inputs."""
    from mlflow import pyfunc
    from mlflow.models import Model

    from fedpriv.data.preprocessing.stored import FILE, Preprocessing
    from fedpriv.data.preprocessing.stored import MODEL as MODEL_FILE
    from fedpriv.tracking.packaged import save_mlflow_model

    described = file.parents[1] / FILE
    if form["part"] == "classifier" and described.exists() and (kept := Preprocessing.load(described)).kind in ("rows", "images"):
        with TemporaryDirectory() as parent:
            content = Path(parent) / "model"
            content.mkdir()
            shutil.copyfile(file, content / MODEL_FILE)
            kept.save(content / FILE)
            save_mlflow_model(folder, content, kept, about, run_id, model_id)
        return
    metadata = {"part": form["part"], "description": about, "classes": form["classes"]}
    model = Model(run_id=run_id, model_id=model_id, signature=_signature(form), metadata=metadata)
    model.add_flavor("pytorch", model_data="data", pytorch_version=facts["versions"]["torch"], code=None)
    if len(form["inputs"]) == 1:  # pyfunc models have one input
        pyfunc.add_to_model(model, loader_module="mlflow.pytorch", data="data", model_config={"device": None})
    (folder / "data").mkdir()
    shutil.copyfile(file, folder / "data" / MODEL_FILE)
    requirements = f"torch=={facts['versions']['torch'].partition('+')[0]}\nmlflow\n"
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    model.save(str(folder / "MLmodel"))


def _inputs(form: Mapping[str, Any]) -> str:
    shapes = ", ".join(
        f"{name} (N, {', '.join(map(str, tensor['shape']))}) {tensor['dtype']}" for name, tensor in form["inputs"].items()
    )
    normal = f", images on the [0, 1] scale less {form['mean']}, divided by {form['std']}" if "mean" in form else ""
    return f"Inputs as in training: {shapes}{normal}."


def _signature(form: Mapping[str, Any]) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def spec(tensor: Mapping[str, Any], name: str | None = None) -> TensorSpec:
        return TensorSpec(np.dtype(tensor["dtype"]), (-1, *tensor["shape"]), name)

    named = len(form["inputs"]) > 1
    inputs = Schema([spec(tensor, name if named else None) for name, tensor in form["inputs"].items()])
    return ModelSignature(inputs, Schema([spec({"dtype": "float32", "shape": form["output"]})]))
