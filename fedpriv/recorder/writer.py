"""Writes a record beside any training loop; it changes nothing that is sent, and its own failure stops no training."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedpriv.errors import UsageError
from fedpriv.recorder import layout
from fedpriv.recorder.layout import Direction, End, Facts, Kind, Line, Refusal
from fedpriv.untrusted.notes import note

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, Any] | Sequence[Any]
"""Tensors or arrays by name, or in the order of the net's ``state_dict``."""


class OtherRecord(UsageError):
    """The folder holds the record of another run."""


class Recording:
    """Writes a record. Several processes may write the same one, as the clients of a simulation do.

    Args:
        folder: of the record; it is made. One that holds a record with the same facts is continued.

    Raises:
        OtherRecord: the folder holds something else.
    """

    def __init__(self, folder: str | os.PathLike[str], facts: Facts) -> None:
        self.folder, self.facts = Path(folder), facts
        self._ended = False
        self._begin()

    def _begin(self) -> None:
        (self.folder / layout.MESSAGES).mkdir(parents=True, exist_ok=True)
        path, text = self.folder / layout.FACTS, layout.to_text(self.facts)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if layout.facts_of(path.read_text(encoding="utf-8")) != self.facts:
                raise OtherRecord(f"{self.folder} holds the record of another run; give an empty folder") from None
            self._end_cut_line()

    def _end_cut_line(self) -> None:
        """End a line that a kill cut off, so that the next one stands alone. After a line of another process this adds an empty
        one."""
        path = self.folder / layout.LINES
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                is_cut = file.read() != b"\n"
            if is_cut:
                self._append("")

    def sent(self, round: int, client: str | int, tensors: Tensors, *, nbytes: int | None = None) -> None:
        """Record what the server sent to a client: the weights at which its local training begins."""
        self._message("down", round, client, tensors, "weights", None, nbytes)

    def answered(
        self,
        round: int,
        client: str | int,
        tensors: Tensors,
        *,
        kind: Kind = "weights",
        num_examples: int | None = None,
        nbytes: int | None = None,
        epsilon: float | None = None,
    ) -> None:
        """Record what a client sent back.

        Args:
            kind: new weights, the change of the weights (after minus before), or the gradient of the mean loss.
            num_examples: the number of samples that it says it trained on.
            epsilon: what it has spent with this answer, where it accounts for differential privacy.
        """
        self._message("up", round, client, tensors, kind, num_examples, nbytes, epsilon)

    def summed(
        self,
        round: int,
        members: Sequence[str | int],
        tensors: Tensors,
        *,
        kind: Kind = "weights",
        num_examples: int | None = None,
    ) -> None:
        """Record the sum of a round, where secure aggregation hides what single clients sent back.

        Args:
            members: the clients whose answers are in it.
            tensors: the mean of their answers, weighted by their numbers of samples.
            num_examples: the samples of all of them.
        """
        names = tuple(map(str, members))
        self._message("up", round, f"sum of round {round}", tensors, kind, num_examples, None, members=names)

    def refused(self, round: int, client: str | int, why: str) -> None:
        """Record that a client answered a round with an error, such as to keep within its budget."""
        if not self._ended:
            try:
                self._append(layout.to_text(Refusal(round, str(client), why)))
            except OSError as error:
                self._end(error)

    def truth(self, client: str | int, samples: Any, labels: Any) -> None:
        """Keep the samples that a client trained on, to score attacks against. They are never sent.

        Args:
            samples: images ``(n, C, H, W)`` in [0, 1], before normalisation and augmentation; or rows ``(n, F)`` of a table, or
                token ids ``(n, L)``, as the net takes them.
            labels: ``(n,)`` class numbers.
        """
        self._samples(self.folder / layout.TRUTH / f"{file_name(str(client))}.safetensors", samples, labels)

    def public(self, samples: Any, labels: Any) -> None:
        """Keep samples of the same kind that are no client's: the non-members of membership inference, and the nearest copies."""
        self._samples(self.folder / layout.PUBLIC, samples, labels)

    def _message(
        self,
        direction: Direction,
        round: int,
        client: str | int,
        tensors: Tensors,
        kind: Kind,
        num_examples: int | None,
        nbytes: int | None,
        epsilon: float | None = None,
        members: tuple[str, ...] = (),
    ) -> None:
        if self._ended:
            return
        data = _packed(tensors)
        digest = hashlib.sha256(data).hexdigest()
        file = f"{layout.MESSAGES}/{digest}.safetensors"
        line = Line(round, str(client), direction, kind, file, digest, num_examples, nbytes, epsilon, members)
        try:
            self._write(self.folder / line.file, data)
            self._append(layout.to_text(line))
        except OSError as error:
            self._end(error)

    def _samples(self, path: Path, samples: Any, labels: Any) -> None:
        if self._ended:
            return
        import torch

        both = {self.facts.samples: torch.as_tensor(samples), "labels": torch.as_tensor(labels)}
        check_samples(both, str(path.name), self.facts)
        try:
            path.parent.mkdir(exist_ok=True)
            self._write(path, _packed(both))
        except OSError as error:
            self._end(error)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        """Write a file whose name is that of its content, unless it is there: a download is the same for all clients."""
        if path.exists() and path.stat().st_size == len(data):
            return
        part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            part.write_bytes(data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        # One write at the end of the file: lines of several processes do not mix.
        descriptor = os.open(self.folder / layout.LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            line = f"{text}\n".encode()
            if os.write(descriptor, line) < len(line):  # the disk is full, and the next write would say so
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def _end(self, error: OSError) -> None:
        """Record no more, so that training goes on; the record says where it ends, as far as that can be written."""
        self._ended = True
        why = f"{type(error).__name__}: {error.strerror or error}"
        note(f"the record in {self.folder} ends here ({why}); training goes on")
        with suppress(OSError):
            self._append(f"\n{layout.to_text(End(why))}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is open between messages."""


def file_name(client: str) -> str:
    """A client's name as that of a file."""
    return client if re.fullmatch(r"[\w-]{1,80}", client) else hashlib.sha256(client.encode()).hexdigest()[:32]


def check_samples(tensors: Mapping[str, Tensor], where: str, facts: Facts) -> None:
    """Check the samples of a client, or public ones.

    Raises:
        UsageError: they are not samples of the record's shape and range with a class number each.
    """
    samples, labels = tensors.get(facts.samples), tensors.get("labels")
    of_shape = (
        samples is not None
        and samples.ndim == 1 + len(facts.input_shape)
        and (
            tuple(samples.shape[1:]) == facts.input_shape
            or (facts.samples == "texts" and samples.shape[1] <= facts.input_shape[0])
        )
    )
    if samples is None or labels is None or not of_shape or labels.shape != samples.shape[:1]:
        shape = ", ".join(map(str, facts.input_shape))
        raise UsageError(f"{where}: {facts.samples} (n, {shape}) and labels (n,)")
    if not len(labels) or labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < facts.classes:
        raise UsageError(f"{where}: labels are class numbers from 0 to {facts.classes - 1}, at least one")
    if facts.samples == "texts":
        if samples.is_floating_point() or int(samples.min()) < 0:
            raise UsageError(f"{where}: texts are token ids, whole numbers from 0")
    elif not samples.is_floating_point() or not bool(samples.isfinite().all()):
        raise UsageError(f"{where}: {facts.samples} are finite numbers of a floating-point type")
    elif facts.samples == "images" and not bool(((samples >= 0) & (samples <= 1)).all()):
        raise UsageError(f"{where}: images are in [0, 1], as before normalisation")


def _packed(tensors: Tensors) -> bytes:
    import safetensors.torch
    import torch

    named = tensors if isinstance(tensors, Mapping) else {str(number): tensor for number, tensor in enumerate(tensors)}
    stored = {name: torch.as_tensor(_array(tensor)).detach().cpu().contiguous() for name, tensor in named.items()}
    return safetensors.torch.save(_apart(stored))


def _array(tensor: Any) -> Any:
    numpy = getattr(tensor, "numpy", None)
    return numpy() if callable(numpy) and not hasattr(tensor, "detach") else tensor  # Flower's arrays


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which no two share memory, which safetensors does not take."""
    seen = set[int]()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        if place in seen:
            tensors[name] = tensor.clone()
        seen.add(place)
    return tensors
