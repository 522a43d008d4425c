"""Functions that run side by side in one thread, and meet wherever they ask for what is cheaper to do for all at once.

Each function is written as if it ran alone. Where it asks, it stops until every other one asks too or has ended; then those who
asked for the same are answered together. So a method's code is the code of one client, whether clients train one after another
or as one wide net.
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
class Question:
    """What somebody asks for.

    Attributes:
        content: what whoever answers must know.
        grad: whether gradients are recorded where it was asked.
        draws: the state of torch's global generator there; whoever draws for the answer leaves it as it is afterwards.
    """

    content: Any
    grad: bool
    draws: Tensor | None


Answer = Callable[[Sequence[Question]], Sequence[Any]]
"""Questions, in the order of those who ask -> their answers."""


class Rendezvous(Generic[T]):
    """Where they meet.

    Args:
        answers: who answers; of those that are asked, the first is heard before the others. What is asked in every step comes
            first, so that nobody runs ahead.
        draws: whether anything that is asked for draws from torch's global generator. Each function then has it as it left it.
    """

    def __init__(self, answers: Sequence[Answer], draws: bool) -> None:
        self._answers, self._draws = answers, draws
        self._main: greenlet | None = None
        self.size = 0
        """Number of the functions that run."""

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """What each function returns; what one of them raises ends all."""
        self._main, self.size = greenlet.getcurrent(), len(functions)
        running = {number: greenlet(function) for number, function in enumerate(functions)}
        waiting: dict[int, tuple[Answer, Question]] = {}
        results: dict[int, T] = {}
        grad, generator = torch.is_grad_enabled(), torch.get_rng_state()

        def go_on(number: int, resume: Callable[..., Any], *with_what: Any) -> None:
            torch.set_grad_enabled(grad)
            asked = resume(*with_what)
            if running[number].dead:
                results[number] = asked
            else:
                waiting[number] = asked

        try:
            for number, one in running.items():
                go_on(number, one.switch)
            while waiting:
                answer = next(answer for answer in self._answers if any(asked == answer for asked, _ in waiting.values()))
                asking = {number: waiting.pop(number) for number in sorted(waiting) if waiting[number][0] == answer}
                try:
                    answers = answer([question for _, question in asking.values()])
                except Exception as error:  # it belongs to the code that asked, which may know what it means
                    number = next(iter(asking))
                    running[number].throw(error)
                    raise
                for number, given in zip(asking, answers, strict=True):
                    go_on(number, running[number].switch, given)
        finally:
            for one in running.values():
                if one and not one.dead:
                    one.throw()  # unwinds it, so that what it holds is let go
            torch.set_grad_enabled(grad)
            torch.set_rng_state(generator)
            self._main = None
        return [results[number] for number in range(len(functions))]

    def ask(self, answer: Answer, content: Any) -> Any:
        """Called by one of the functions: stop here until ``answer`` has answered."""
        if self._main is None:
            raise RuntimeError("nobody to meet: this is asked from within Rendezvous.run alone")
        question = Question(content, torch.is_grad_enabled(), torch.get_rng_state() if self._draws else None)
        given = self._main.switch((answer, question))
        torch.set_grad_enabled(question.grad)
        if question.draws is not None:
            torch.set_rng_state(question.draws)
        return given
