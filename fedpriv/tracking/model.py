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
    """Log the model, so that ``mlflow.pytorch.load_model("runs:/<id>/model")`` loads it. The file, which may come from elsewhere,
    is not opened; MLflow checks it when it loads it.

    Args:
        facts, summary: of the run; ``model`` in the summary describes the file.
    """
    from mlflow import pyfunc
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    experiment, run_id, form = run.info.experiment_id, run.info.run_id, summary["model"]
    models = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    if any(model.status == LoggedModelStatus.READY for model in models):  # the acknowledgement was lost
        return
    about = f"{facts['method']} on {Path(facts['dataset']).name}: {_PARTS[form['part']]}. {_inputs(form)}"
    logged = client.create_logged_model(experiment, "model", run_id, model_type=form["part"], tags={"mlflow.note.content": about})
    metadata = {"part": form["part"], "description": about, "classes": form["classes"]}
    model = Model(run_id=run_id, model_id=logged.model_id, signature=_signature(form), metadata=metadata)
    model.add_flavor("pytorch", model_data="data", pytorch_version=facts["versions"]["torch"], code=None)
    if len(form["inputs"]) == 1:  # pyfunc models have one input
        pyfunc.add_to_model(model, loader_module="mlflow.pytorch", data="data", model_config={"device": None})
    with TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        shutil.copyfile(file, Path(folder) / "data" / "model.pt2")
        (Path(folder) / "requirements.txt").write_text(
            f"torch=={facts['versions']['torch'].partition('+')[0]}\nmlflow\n", encoding="utf-8"
        )
        model.save(str(Path(folder) / "MLmodel"))
        client.log_model_artifacts(logged.model_id, folder)
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, summary["rounds"])])


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
