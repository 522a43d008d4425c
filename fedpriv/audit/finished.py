"""Results of an audit, kept in the run's folder until its report is written, so that an interrupted audit can continue."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.lab.control import code
from fedpriv.attacks.lab.trial import Attacker, mount
from fedpriv.errors import FedprivError
from fedpriv.files import Damaged, checksum, load_json, load_tensors, save_json, save_tensors

T = TypeVar("T")
UNFINISHED = "unfinished"
"""Folder of the results, in that of a run's audit."""
WORTH_KEEPING = 1.0
"""Least CPU seconds of a result that is kept; what took less is computed again."""


class Finished:
    """The finished results of a run's audit; each is named by a hash of all that it depends on, such as the code.

    Args:
        folder: created with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mount(self, attacker: Attacker[Any], observed: Sequence[Observation], seed: int) -> Reconstruction:
        """:func:`fedpriv.attacks.lab.trial.mount`, unless its result is kept.

        Raises:
            FedprivError: the result cannot be written.
        """
        path = self._path("attack", attacker, seed, list(map(_facts, observed)), suffix="safetensors")
        with suppress(Damaged):  # or not there
            stored = load_tensors(path)
            return Reconstruction(cpu_seconds=float(stored.pop("cpu_seconds")), **stored)
        result: Reconstruction = mount(attacker, observed, seed)
        if result.cpu_seconds >= WORTH_KEEPING:
            self._save(save_tensors, path, vars(result) | {"cpu_seconds": torch.tensor(result.cpu_seconds)})
        return result

    def part(self, *facts: object, form: TypeAdapter[T], compute: Callable[[], T]) -> T:
        """The result of a part of the audit, computed if it is not kept.

        Args:
            facts: what it depends on, by ``repr``.
            form: how it is stored.

        Raises:
            FedprivError: it cannot be written.
        """
        path = self._path(*facts, suffix="json")
        with suppress(Damaged):
            return form.validate_python(load_json(path))
        result = compute()
        self._save(save_json, path, form.dump_python(result, mode="json"))
        return result

    def _path(self, *facts: object, suffix: str) -> Path:
        named = hashlib.sha256(repr((facts, code(), code(Path(__file__).parents[1]))).encode()).hexdigest()
        return self._folder / f"{named[:32]}.{suffix}"

    def _save(self, save: Callable[[Path, Any], None], path: Path, result: Any) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save(path, result)
        except OSError as error:
            raise FedprivError(f"cannot keep what the audit has finished in {self._folder}: {error.strerror}") from None


_OF_THE_RUN = ("weights", "statistics", "net", "public", "zero_gradient_change", "penalty")
"""Fields of an observation that follow from the run, the message and the threat model."""


def _facts(observation: Observation) -> str:
    """The facts of an observation; a hash of its message."""
    sent = checksum({name: tensor.detach().cpu() for name, tensor in observation.shared.items()})
    left_out = {"shared", "labels", *_OF_THE_RUN}
    known = {each.name: getattr(observation, each.name) for each in fields(observation) if each.name not in left_out}
    labels = None if observation.labels is None else observation.labels.tolist()
    return f"{sent} {known} {labels} {observation.net}"
