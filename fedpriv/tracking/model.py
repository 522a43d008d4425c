"""The server's final model in MLflow: a PyTorch model with a signature, of the file that the run exported."""

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
    """Log the model, so that ``mlflow.pytorch.load_model("runs:/<id>/model")`` gives it. The file is not opened: it may come
    from elsewhere, and MLflow checks it when it is loaded.

    Args:
        facts, summary: of the run; ``model`` of the summary says what the file holds.
    """
    from mlflow import pyfunc
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    experiment, run_id, said = run.info.experiment_id, run.info.run_id, summary["model"]
    known = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    if any(one.status == LoggedModelStatus.READY for one in known):  # the acknowledgement was lost
        return
    about = f"{facts['method']} on {Path(facts['dataset']).name}: {_PARTS[said['part']]}. {_inputs(said)}"
    logged = client.create_logged_model(experiment, "model", run_id, model_type=said["part"], tags={"mlflow.note.content": about})
    metadata = {"part": said["part"], "description": about, "classes": said["classes"]}
    model = Model(run_id=run_id, model_id=logged.model_id, signature=_signature(said), metadata=metadata)
    model.add_flavor("pytorch", model_data="data", pytorch_version=facts["versions"]["torch"], code=None)
    if len(said["inputs"]) == 1:  # MLflow's general form has one tensor
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


def _inputs(said: Mapping[str, Any]) -> str:
    shapes = ", ".join(f"{name} (N, {', '.join(map(str, one['shape']))}) {one['dtype']}" for name, one in said["inputs"].items())
    normal = f", images on the [0, 1] scale less {said['mean']}, divided by {said['std']}" if "mean" in said else ""
    return f"Inputs as in training: {shapes}{normal}."


def _signature(said: Mapping[str, Any]) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def tensor(one: Mapping[str, Any], name: str | None = None) -> TensorSpec:
        return TensorSpec(np.dtype(one["dtype"]), (-1, *one["shape"]), name)

    named = len(said["inputs"]) > 1
    inputs = Schema([tensor(one, name if named else None) for name, one in said["inputs"].items()])
    return ModelSignature(inputs, Schema([tensor({"dtype": "float32", "shape": said["output"]})]))
