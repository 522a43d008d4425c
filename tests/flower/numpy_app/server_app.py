"""The server of the app with ``NumPyClient``."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Context
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from images_app.task import Net  # type: ignore[import-not-found]


class SavedFedAvg(FedAvg):
    """FedAvg that writes each global model to a file."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        merged, metrics = super().aggregate_fit(server_round, results, failures)
        arrays = parameters_to_ndarrays(merged)
        torch.save(dict(zip(Net().state_dict(), map(torch.tensor, arrays), strict=True)), self.path)
        return merged, metrics


def server_fn(context: Context) -> ServerAppComponents:
    torch.manual_seed(0)
    initial = [tensor.numpy() for tensor in Net().state_dict().values()]
    lr = context.run_config["learning-rate"]
    strategy = SavedFedAvg(
        context.run_config["model-file"],
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(initial),
        on_fit_config_fn=lambda _: {"lr": lr},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]))


app = ServerApp(server_fn=server_fn)
