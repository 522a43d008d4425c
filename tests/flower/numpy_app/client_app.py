"""The client of the app with ``NumPyClient``."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from images_app.task import Net, load_data  # type: ignore[import-not-found]
from images_app.task import train as train_net


class DigitsClient(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.loader = load_data(context.node_config["partition-id"], context.run_config["batch-size"])
        self.epochs = context.run_config["local-epochs"]
        self.net = Net()

    def fit(self, parameters: Any, config: Any) -> Any:
        state = zip(self.net.state_dict(), map(torch.tensor, parameters), strict=True)
        self.net.load_state_dict(dict(state))
        train_net(self.net, self.loader, self.epochs, config["lr"])
        return [tensor.numpy() for tensor in self.net.state_dict().values()], len(self.loader.dataset), {}


def client_fn(context: Context) -> Client:
    return DigitsClient(context).to_client()


app = ClientApp(client_fn=client_fn)
