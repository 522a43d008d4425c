"""A strategy around another one."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

Merged = tuple[ArrayRecord | None, MetricRecord | None]


class WrappedStrategy(Strategy):  # type: ignore[misc]
    """Does all that another strategy does; a subclass adds to it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        return list(self.strategy.configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Merged:
        merged: Merged = self.strategy.aggregate_train(server_round, replies)
        return merged

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()
