"""A net as a file that needs no code of its own: a program of ``torch.export``."""

from __future__ import annotations

import copy
import warnings
from io import BytesIO
from typing import TYPE_CHECKING

from fedpriv.errors import first_line
from fedpriv.recorder.layout import Facts
from fedpriv.untrusted.notes import note

if TYPE_CHECKING:
    from torch import nn


def program_of(net: nn.Module, facts: Facts) -> bytes | None:
    """The file of a net in its mode, for batches of any size; ``None``, with a note: it cannot be exported."""
    import torch

    shape = (2, *facts.input_shape)  # one sample would be exported as a batch of one alone
    probe = torch.zeros(shape, dtype=torch.long) if facts.samples == "texts" else torch.rand(shape)
    file, batches = BytesIO(), ({0: torch.export.Dim.DYNAMIC},)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of tensors that the net sets; they are none of its user's concern
            torch.export.save(torch.export.export(copy.deepcopy(net).cpu(), (probe,), dynamic_shapes=batches), file)
    except Exception as error:  # of the net, or of what export does not know
        note(
            f"the record has no net, as torch.export cannot save it ({first_line(error)}); give it to the audit, "
            "fedpriv.audit(folder, model=net)"
        )
        return None
    return file.getvalue()
