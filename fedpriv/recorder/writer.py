"""Writes a record beside any training loop; it changes nothing that is sent, and its own failure stops no training."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import struct
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
        self._sent = b"", ""
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
        delta: float | None = None,
    ) -> None:
        """Record what a client sent back.

        Args:
            kind: new weights, the change of the weights (after minus before), or the gradient of the mean loss.
            num_examples: the number of samples that it says it trained on.
            epsilon, delta: what it has spent with this answer, where it accounts for differential privacy of its whole data.
        """
        self._message("up", round, client, tensors, kind, num_examples, nbytes, epsilon, delta)

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

    def keep(self, name: str, data: bytes) -> None:
        """Write a file of the record's folder."""
        try:
            self._replace(self.folder / name, data)
        except OSError as error:
            self._end(error)

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
        delta: float | None = None,
        members: tuple[str, ...] = (),
    ) -> None:
        if self._ended:
            return
        data = _packed(tensors)
        before, known = self._sent
        is_new = direction == "up" or data != before  # one download is for many clients
        digest = hashlib.sha256(data).hexdigest() if is_new else known
        file = f"{layout.MESSAGES}/{digest}.safetensors"
        line = Line(round, str(client), direction, kind, file, digest, num_examples, nbytes, epsilon, delta, members)
        try:
            if is_new:
                self._write(self.folder / line.file, data)
            self._append(layout.to_text(line))
            if direction == "down":
                self._sent = data, digest
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
            data = _packed(both)
            if not path.exists() or path.read_bytes() != data:
                self._replace(path, data)
        except OSError as error:
            self._end(error)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        """Write a file whose name is that of its content, unless it is there: a download is the same for all clients."""
        if not path.exists() or path.stat().st_size != len(data):
            Recording._replace(path, data)

    @staticmethod
    def _replace(path: Path, data: bytes) -> None:
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
    """A file of safetensors. Its own writer checks each tensor first, which takes longer than the rest of a small message.

    Raises:
        UsageError: a tensor is of a type that such files do not have.
    """
    import torch

    from fedpriv.wire.sealing import CODES

    codes = {dtype: code for code, dtype in CODES.items()}
    named = tensors if isinstance(tensors, Mapping) else {str(number): tensor for number, tensor in enumerate(tensors)}
    stored = {name: torch.as_tensor(_array(tensor)).detach().cpu().contiguous() for name, tensor in named.items()}
    header, parts, end = dict[str, object](), list[Any](), 0
    for name, tensor in sorted(stored.items(), key=lambda item: -item[1].itemsize):  # each begins at a multiple of its size
        if tensor.dtype not in codes:
            raise UsageError(f"tensor {name} is of {tensor.dtype}, which safetensors does not store")
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy())
        header[name] = {
            "dtype": codes[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end := end + tensor.nbytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def _array(tensor: Any) -> Any:
    numpy = getattr(tensor, "numpy", None)
    return numpy() if callable(numpy) and not hasattr(tensor, "detach") else tensor  # Flower's arrays
