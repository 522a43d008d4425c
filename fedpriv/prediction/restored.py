"""The final model of a run, from the files of its folder alone: the training data may be gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedpriv.agreement import Agreement, Declared, agree
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.data.preprocessing.stored import Preprocessing
from fedpriv.defenses import build_transforms
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged, load_tensors
from fedpriv.interfaces import Private
from fedpriv.models.net import Net
from fedpriv.models.pairs.fusion import Fusion
from fedpriv.models.pairs.image_encoders import find_backbone
from fedpriv.models.text.pretrained import Encoder
from fedpriv.models.text.transformer import TextEncoder, text_encoder
from fedpriv.prediction.predictor import encode, predict
from fedpriv.samples import Inputs, laid_out, tensors
from fedpriv.seeding import global_rng
from fedpriv.simulation.finished.final_model import Plain
from fedpriv.simulation.inputs.described import encoder_of
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.storage.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class FinalModel:
    """A model of a finished run, and how samples become its inputs.

    Attributes:
        net: inputs -> logits ``(B, C)``, of a regression numbers in the label's unit ``(B, 1)``, in evaluation mode; of pairs it
            takes images and texts.
        tokenizer: of texts.
        about: what it is, in a line.
        notes: what the user should know of this model, a line each.
    """

    net: Plain
    preprocessing: Preprocessing
    tokenizer: PreTrainedTokenizerBase | None
    about: str
    notes: tuple[str, ...]

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits ``(B, C)``; texts are cut to the longest of the batch."""
        if isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = laid_out(inputs)
        elif (trim := getattr(self.net.net.encoder, "trim", None)) is not None:
            inputs = trim(inputs)
        logits: Tensor = self.net(*tensors(inputs).values())
        return logits

    def predict(self, samples: Any, warn: Callable[[str], None]) -> pd.DataFrame:
        """The class of each sample, and the probability of each class, or the number;
        :func:`fedpriv.prediction.predictor.encode` says how samples are given.

        Args:
            warn: called with lines on how the samples were read.
        """
        encoded = encode(samples, self.preprocessing, self.tokenizer, warn)
        return predict(self.logits, encoded, self.preprocessing)


def final_model(folder: RunFolder, client: int | str | None = None, best: bool = False) -> FinalModel:
    """The server's final model, or a client's: the server's with the client's private state, as the client was tested with.

    Where the method trains a copy before each test, the model is that before.

    Args:
        client: its number, or its name where clients come with the data; ``None``: the server's model.
        best: the model of the best round on validation data in place of the last one.

    Raises:
        UsageError: the run is not finished, has no best round or keeps no preprocessing, there is no such client, the model is
            not complete without a client's private state, or that state is not in the folder.
        Damaged: a file of the folder is damaged.
    """
    if (summary := folder.summary()) is None:
        raise UsageError(f"{folder.path} is not finished; {folder.how_to_resume} finishes it")
    chosen = _best(folder, summary) if best else summary
    preprocessing, encoder = restored_preprocessing(folder)
    config = folder.config()
    number = None if client is None else client_number(folder, config, client)
    words = None if preprocessing.text is None else preprocessing.text.words
    # A method's models depend on nothing else that clients declare.
    classes, target = len(preprocessing.classes), preprocessing.target
    declared = Declared(classes, range(config.data.clients), 1.0, 1, target=target)
    config, build = SampleForm(preprocessing.input_shape, words).net(config, declared.task.outputs)
    agreement, net = agree(config, build, declared, build_transforms(config.wire.transforms), torch.device("cpu"))
    _check_trained(folder, agreement, number)
    row, constants = _server_row(folder.server_file(best), agreement)
    state, notes = agreement.space.unpack(row), tuple[str, ...]()
    if number is not None:
        private, notes = _private(folder, agreement, number, chosen["last_update_per_client"][number])
        state = agreement.method.client_state(row, private)
    _fill(net, {**constants, **state})
    _complete(net, config, encoder, preprocessing.input_shape)
    names = ("image", "text") if preprocessing.kind == "pairs" else ("",)
    about = f"{config.called} on {Path(folder.facts['dataset']).name}, " + (
        "the server's model" if number is None else f"client {number}'s"
    )
    about += f", of its best round ({chosen['round']})" if best else ""
    tokenizer = None if encoder is None else encoder.tokenizer
    return FinalModel(Plain(net, names, "classifier", target).eval(), preprocessing, tokenizer, about, notes)


def _best(folder: RunFolder, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary's entry on the best round.

    Raises:
        UsageError: there is none.
    """
    if (best := summary.get("best")) is None:
        raise UsageError(
            f"{folder.path} has no best round: rounds are chosen on validation data alone (eval.split=validation, with "
            "data.validation_fraction)"
        )
    return dict(best)


def restored_preprocessing(folder: RunFolder) -> tuple[Preprocessing, Encoder | None]:
    """How a run's samples became inputs, and the encoder of its texts.

    Raises:
        UsageError: the folder does not keep it, or the encoder is not available.
    """
    if not folder.preprocessing_file.exists():
        raise UsageError(f"{folder.path} does not keep how its samples were prepared (no {folder.preprocessing_file.name})")
    preprocessing = Preprocessing.load(folder.preprocessing_file)
    return preprocessing, None if preprocessing.text is None else encoder_of(folder.config(), preprocessing.text)


def client_number(folder: RunFolder, config: RunConfig, client: int | str) -> int:
    """The number of a client that is given by its number or by its name.

    Raises:
        UsageError: there is none.
    """
    names, clients = list(folder.facts.get("client_names", ())), config.data.clients
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, int) and not isinstance(client, bool) and 0 <= client < clients:
        return client
    also = f", or a name: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
    raise UsageError(f"there is no client {client!r}; the clients are 0 to {clients - 1}{also}")


def _check_trained(folder: RunFolder, agreement: Agreement, client: int | None) -> None:
    """Check that each trained tensor of the model is known: the server has it, or the client."""
    method, config = agreement.method, agreement.config
    if not method.objective.labels:
        raise UsageError(
            f"{folder.path} has no classifier: objective {method.objective.name} learns without labels; run.weights() has its "
            "encoder"
        )
    trained = agreement.space.select(method.objective.trained_roles)
    if client is None and not method.has_global_model:
        roles = ", ".join(dict.fromkeys(name.partition(".")[0] for name in method.private_names))
        last = config.data.clients - 1
        raise UsageError(
            f"{folder.path}: under {config.called} each client has its own {roles}, so the server has no whole model; "
            f"client=0 to client={last} give the clients' (--client on the command line)"
        )
    known = {*(method.server_names if method.pools else agreement.sent_names), *method.tested_names}
    if unknown := [name for name in trained if name not in known]:
        raise UsageError(
            f"{folder.path} has no whole model: a mask keeps {unknown[0]} from every message ({len(unknown)} tensors)"
        )


def _server_row(file: Path, agreement: Agreement) -> tuple[Tensor, dict[str, Tensor]]:
    """The server's model ``(p,)`` in a file, and the constants of the net that are stored with it."""
    row, names = agreement.initial.clone(), agreement.method.server_names
    if not names:  # each client has its own
        return row, {}
    tensors, space = load_tensors(file), agreement.space
    for name in names:
        if name not in tensors or tensors[name].shape != space[name].shape:
            raise Damaged(f"{file} is not this run's: {name} is missing, or of another shape")
    constants = {name: tensors[name] for name in agreement.constants if name in tensors}
    return space.pack({name: tensors[name] for name in names}, row), constants


def _private(folder: RunFolder, agreement: Agreement, client: int, last: int | None) -> tuple[Private, tuple[str, ...]]:
    """The private state that a client is tested with after its local update in a round, and lines on what it lacks."""
    method, config, notes = agreement.method, agreement.config, []
    if adaptation := method.adaptation(config.train.rounds):
        steps = ", ".join(f"{phase.steps} steps" if phase.steps else f"{phase.epochs} epochs" for phase in adaptation)
        notes.append(
            f"{config.called} trains a copy of the model on the client's data before each test ({steps}); this is the model "
            "before that"
        )
    if not method.tested_names:
        return {}, tuple(notes)
    if last is None:
        notes.append(f"client {client} was never trained: its own part has its initial values")
        return method.initial_private(client, agreement.initial), tuple(notes)
    if "deployed" in folder.facts:
        raise UsageError(
            f"{folder.path}: under {config.called} client {client} has its own {', '.join(_roles(method.tested_names))}, which "
            "is on the client's machine alone"
        )
    try:
        return ClientStore(folder.clients).load(client, last), tuple(notes)
    except FedprivError as error:
        raise FedprivError(f"the model of client {client} needs its private state, which cannot be read: {error}") from None


def _roles(names: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


@torch.no_grad()
def _fill(net: Net, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into a net, by name."""
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def _complete(net: Net, config: RunConfig, encoder: Encoder | None, shape: tuple[int, ...] | None) -> None:
    """Put the frozen encoders back in front of the layers that were trained on their features."""
    tune, fusion = config.model.tune, net.encoder if isinstance(net.encoder, Fusion) else None
    if encoder is not None and tune == "head":
        with global_rng(config.seed, "frozen", "text"):
            frozen = text_encoder(encoder, "head", config.model.lora_rank, config.model.lora_alpha)
        if fusion is None:
            net.encoder = OnFrozen(frozen, net.encoder)
        else:
            fusion.text.encoder = frozen
    if fusion is not None and tune != "full":
        assert shape is not None
        backbone = find_backbone(config.model.backbone, shape, config.model.pretrained)
        with global_rng(config.seed, "frozen", "image"):
            fusion.image.encoder = backbone.build()


class OnFrozen(nn.Module):
    """Layers on the features of a frozen text encoder, as one encoder of texts."""

    def __init__(self, frozen: TextEncoder, layers: nn.Module) -> None:
        super().__init__()
        self.frozen, self.layers = frozen, layers
        self.lengths, self.trim = frozen.lengths, frozen.trim

    def forward(self, ids: Tensor) -> Tensor:
        features: Tensor = self.layers(self.frozen(ids))
        return features
