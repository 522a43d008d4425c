"""A Flower app of the documented form, in this process: a grid hands each message to the app itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from tests.recorder.loop import samples, small_net, trained

CLIENTS = 2


def client_app(mods: Sequence[Any]) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = small_net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = trained(net, samples(6, int(context.node_config["partition-id"])))
        metrics = MetricRecord({"num-examples": 6})
        return Message(content=RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    return app


class LocalGrid(Grid):
    """A grid whose nodes run in this process; ``answers`` has all replies."""

    def __init__(self, app: ClientApp, number: int = 1) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = number
        TaskIdentity.node_id = 0
        self.app, self.answers = app, list[Message]()
        self.contexts = {
            100 + place: Context(number, 100 + place, {"partition-id": place, "num-partitions": CLIENTS}, RecordDict(), {})
            for place in range(CLIENTS)
        }

    def set_run(self, run_id: int) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self.app(message, self.contexts[message.metadata.dst_node_id]) for message in messages]
        self.answers += replies
        return replies


def run(
    mods: Sequence[Any], rounds: int = 2, wrap: Any = lambda strategy: strategy, number: int = 1
) -> tuple[LocalGrid, dict[str, torch.Tensor]]:
    """The grid and the final model of a federation."""
    torch.manual_seed(0)
    grid = LocalGrid(client_app(mods), number)
    inner = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy: Strategy = wrap(inner)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(small_net().state_dict()), num_rounds=rounds)
    return grid, dict(result.arrays.to_torch_state_dict())
