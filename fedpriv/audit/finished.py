"""What an audit has finished, kept in the run's folder until its report is written, for when it is broken off."""

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
"""CPU seconds; what took less is done again."""


class Finished:
    """Results of a run's audit so far. Each has a name made of all that it depends on, so those of another code are not read.

    Args:
        folder: is created with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mount(self, attacker: Attacker[Any], observed: Sequence[Observation], seed: int) -> Reconstruction:
        """:func:`fedpriv.attacks.lab.trial.mount`, unless its result is there.

        Raises:
            FedprivError: its result cannot be written.
        """
        path = self._path("attack", attacker, seed, [_facts(one) for one in observed], suffix="safetensors")
        with suppress(Damaged):  # or not there
            found = load_tensors(path)
            return Reconstruction(cpu_seconds=float(found.pop("cpu_seconds")), **found)
        made: Reconstruction = mount(attacker, observed, seed)
        if made.cpu_seconds >= WORTH_KEEPING:
            tensors = {one.name: getattr(made, one.name) for one in fields(made) if one.name != "cpu_seconds"}
            self._save(save_tensors, path, tensors | {"cpu_seconds": torch.tensor(made.cpu_seconds)})
        return made

    def part(self, *facts: object, form: TypeAdapter[T], compute: Callable[[], T]) -> T:
        """What a part of the audit found, read if it is there.

        Args:
            facts: what it depends on; what their ``repr`` says.
            form: how it is stored.

        Raises:
            FedprivError: it cannot be written.
        """
        path = self._path(*facts, suffix="json")
        with suppress(Damaged):
            return form.validate_python(load_json(path))
        made = compute()
        self._save(save_json, path, form.dump_python(made, mode="json"))
        return made

    def _path(self, *facts: object, suffix: str) -> Path:
        named = hashlib.sha256(repr((facts, code(), code(Path(__file__).parents[1]))).encode()).hexdigest()
        return self._folder / f"{named[:32]}.{suffix}"

    def _save(self, save: Callable[[Path, Any], None], path: Path, made: Any) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save(path, made)
        except OSError as error:
            raise FedprivError(f"cannot keep what the audit has finished in {self._folder}: {error.strerror}") from None


_OF_THE_RUN = ("weights", "statistics", "net", "public", "zero_gradient_change", "penalty")
"""Of an observation what follows from the run, the message and the threat model."""


def _facts(one: Observation) -> str:
    """An observation; of its message a hash."""
    sent = checksum({name: tensor.detach().cpu() for name, tensor in one.shared.items()})
    known = {each.name: getattr(one, each.name) for each in fields(one) if each.name not in ("shared", "labels", *_OF_THE_RUN)}
    return f"{sent} {known} {None if one.labels is None else one.labels.tolist()} {one.net}"
