"""Concurrent functions in one thread, whose requests are served in batches.

Each function is written as if it ran alone. A request suspends it until all other functions have made a request or have returned.
Then one handler serves all requests of its kind at once. So the code of a method is that of a single client, whether clients
train one after another or together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from greenlet import greenlet
from torch import Tensor

T = TypeVar("T")


@dataclass
class Request:
    """A function's request to a handler.

    Attributes:
        content: the handler's input.
        grad: whether the function records gradients.
        rng_state: the function's state of torch's global generator, which a handler that draws advances; ``None``: not tracked.
    """

    content: Any
    grad: bool
    rng_state: Tensor | None


Handler = Callable[[Sequence[Request]], Sequence[Any]]
"""Requests, in the order of the functions -> their responses."""


def _enable_grad(enabled: bool) -> None:
    """``torch.set_grad_enabled``, which makes an object for each call, where it changes something."""
    if torch.is_grad_enabled() != enabled:
        torch.set_grad_enabled(enabled)


class Scheduler(Generic[T]):
    """Runs functions concurrently, and serves their requests.

    Args:
        priority: the handlers; of those with requests, the first is served.
        draws: whether any handler draws from torch's global generator. Each function then keeps its own generator state.
    """

    def __init__(self, priority: Sequence[Handler], draws: bool) -> None:
        self._priority, self._draws = priority, draws
        self._main: greenlet | None = None
        self.size = 0
        """Number of functions that run concurrently."""

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run the functions and return their results; an exception in one of them ends all."""
        self._main, self.size = greenlet.getcurrent(), len(functions)
        running = {number: greenlet(function) for number, function in enumerate(functions)}
        waiting: dict[int, tuple[Handler, Request]] = {}
        results: dict[int, T] = {}
        grad, generator = torch.is_grad_enabled(), torch.get_rng_state()

        def resume(number: int, *response: Any) -> None:
            _enable_grad(grad)
            result = running[number].switch(*response)
            if running[number].dead:
                results[number] = result
            else:
                waiting[number] = result

        try:
            for number in running:
                resume(number)
            while waiting:
                wanted = {handler for handler, _ in waiting.values()}
                handler = min(wanted, key=self._priority.index) if len(wanted) > 1 else wanted.pop()
                served = {number: waiting.pop(number)[1] for number in sorted(waiting) if waiting[number][0] is handler}
                try:
                    responses = handler(list(served.values()))
                except Exception as error:  # raised in the function that made the request, which may handle it
                    number = next(iter(served))
                    running[number].throw(type(error), error, error.__traceback__)  # with the lines that led to it
                    raise
                for number, response in zip(served, responses, strict=True):
                    resume(number, response)
        finally:
            for function in running.values():
                if function and not function.dead:
                    function.throw()  # unwinds its stack, which releases its tensors
            torch.set_grad_enabled(grad)
            torch.set_rng_state(generator)
            self._main = None
        return [results[number] for number in range(len(functions))]

    def submit(self, handler: Handler, content: Any) -> Any:
        """Suspend the calling function until ``handler`` has served its request; returns the response."""
        if self._main is None:
            raise RuntimeError("submit can be called only by a function that Scheduler.run runs")
        request = Request(content, torch.is_grad_enabled(), torch.get_rng_state() if self._draws else None)
        response = self._main.switch((handler, request))
        _enable_grad(request.grad)
        if request.rng_state is not None:
            torch.set_rng_state(request.rng_state)
        return response
