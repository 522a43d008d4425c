"""A record's net as a program of ``torch.export``, or as a model of transformers, computes and is attacked as the net itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedpriv
from fedpriv.attacks.api.user_net import cut
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.foreign.program import Program, load_program
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.errors import UsageError
from fedpriv.recorder.layout import PROGRAM
from fedpriv.recorder.reader import Recorded
from tests.notes import noted
from tests.recorder.loop import recorded, samples, small_net, trained

WORDS, PAD = 20, 0
TIMES: dict[str, Any] = {"cpu_seconds": 0.0, "images_per_cpu_second": 0.0}


class Layers(nn.Module):
    """Every kind of layer that a program gets back, for images ``(B, 3, 8, 8)``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4)
        self.bare, self.groups = nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4)
        self.fixed = nn.BatchNorm2d(4).eval()
        self.across, self.layer = nn.Conv1d(4, 4, 2, stride=2), nn.LayerNorm(32)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(128, 3)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def train(self, mode: bool = True) -> Layers:
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.groups(self.fixed(self.bare(self.norm(self.conv(x)).relu())))
        x = self.layer(self.across(x.flatten(2))) * self.scale
        logits: Tensor = self.fc(self.drop(x.flatten(1)))
        return logits


class Words(nn.Module):
    """Attention and a recurrent layer on token ids ``(B, 5)``; its first matrix and its words are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.back = nn.Embedding(WORDS, 8, padding_idx=PAD), nn.Linear(8, WORDS, bias=False)
        self.back.weight = self.words.weight
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.unused = nn.Linear(2, 2)
        self.recurrent, self.fc = nn.GRU(8, 8, batch_first=True), nn.Linear(WORDS, 3)
        self.places = torch.linspace(0, 1, 5)[:, None]  # neither a parameter nor a buffer

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.attention(self.words(ids) + self.places, src_key_padding_mask=ids == PAD)
        logits: Tensor = self.fc(self.back(self.recurrent(hidden)[0]).mean(1))
        return logits


def as_program(net: nn.Module, probe: Tensor, file: Path) -> nn.Module:
    """A net that was exported by PyTorch alone, and loaded."""
    program = torch.export.export(net, (probe,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, file)
    return load_program(file)


def kinds(net: nn.Module) -> dict[str, type[nn.Module]]:
    """The layers with tensors of their own that attacks ask for."""
    asked = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
    return {name: kind for name, module in net.named_modules() for kind in asked if isinstance(module, kind)}


def tokens(number: int) -> Tensor:
    ids = torch.randint(1, WORDS, (number, 5), generator=torch.Generator().manual_seed(0))
    ids[:, 4] = PAD
    return ids


@pytest.mark.parametrize(
    ("build", "inputs"), [(Layers, torch.rand(7, 3, 8, 8)), pytest.param(Words, tokens(7), marks=pytest.mark.slow)]
)
def test_a_program_has_the_net_s_layers_names_and_results(build: Callable[[], nn.Module], inputs: Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = build().train()
    net.requires_grad_(True).get_parameter("fc.bias").requires_grad_(False)
    program = as_program(net, inputs[:2], tmp_path / "other.pt2")
    assert isinstance(program, Program) and program.state_dict().keys() == net.state_dict().keys()
    assert program.is_ordered == (list(program.state_dict()) == list(net.state_dict())) == (build is Words)
    assert kinds(program) == {name: kind for name, kind in kinds(net).items() if name != "unused"}
    assert {name for name, it in net.named_parameters() if it.requires_grad} == {
        name for name, it in program.named_parameters() if it.requires_grad
    }
    for size in (7, 3, 1):  # with dropout and running statistics
        both: list[nn.Module] = [copy.deepcopy(net), copy.deepcopy(program)]
        results = []
        for it in both:
            torch.manual_seed(0)
            results.append(it(inputs[:size]))
        assert torch.equal(*results)
        assert all(torch.equal(it, both[1].state_dict()[name]) for name, it in both[0].state_dict().items())
    probe = None if inputs.is_floating_point() else inputs[:2]
    whole, own = (cut(it, tuple(inputs.shape[1:]), probe=probe) for it in (net, program))
    assert (own.names, own.head) == (whole.names, whole.head)
    labels, expected = torch.tensor([0, 1, 2]), list[Tensor]()
    for place, it in enumerate((net.eval(), program.eval())):  # the gradient of a gradient's length, as inversion takes
        weights = [parameter for parameter in it.parameters() if parameter.requires_grad]
        with sdpa_kernel(SDPBackend.MATH):
            first = torch.autograd.grad(F.cross_entropy(it(inputs[:3]), labels), weights, create_graph=True, allow_unused=True)
            length = sum((one**2).sum() for one in first if one is not None)
            second = torch.autograd.grad(length, weights, allow_unused=True)  # type: ignore[arg-type]
        found = [one for one in second if one is not None]
        expected.extend([] if place else found)
        assert len(found) == len(expected) > 4 and all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_the_audit_of_a_program_is_that_of_the_net(tmp_path: Path) -> None:
    torch.manual_seed(5)
    folders = {"record": recorded(tmp_path / "a" / "record").folder}
    folders["program"] = recorded(tmp_path / "b" / "record", net=small_net()).folder
    assert Recorded(folders["program"]).facts.net == PROGRAM
    options: dict[str, Any] = {"messages": 1, "membership_shadows": 8, "label_shadows": 8, "singles": 4}
    named = fedpriv.audit(folders["record"], **options).runs[0]
    ours = fedpriv.audit(folders["program"], model=folders["program"] / PROGRAM, **options).runs[0]
    assert named.verdict == ours.verdict and named.conditions == ours.conditions
    figures = [[(it.attack, it.status, it.points) for it in run.membership] for run in (named, ours)]
    assert figures[0] == figures[1] and figures[0]
    attempts = [
        [(it.attack, it.status, it.figures and replace(it.figures, **TIMES)) for one in run.images for it in one.outcomes]
        for run in (named, ours)
    ]
    assert attempts[0] == attempts[1] and len(attempts[0]) > 4


def test_a_program_is_loaded_at_its_user_s_word_alone(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    record = recorded(tmp_path / "record", rounds=1, net=PROGRAM)
    (record.folder / PROGRAM).write_bytes(pickle.dumps(Code()))
    with pytest.raises(UsageError, match=r"net.pt2 is code, .* --model .*net.pt2"):
        FolderRecord(record.folder)
    with pytest.raises(UsageError, match=r"net.pt2 was not written by torch.export.save"):
        FolderRecord(record.folder, record.folder / PROGRAM)
    with pytest.raises(UsageError, match=r"there is no .*other.pt2"):
        FolderRecord(record.folder, "other.pt2")
    assert not (tmp_path / "ran").exists()


class Two(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs.flatten(1)), inputs


class Noisy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1)) + torch.rand_like(inputs[:, 0, 0, :3])


@pytest.mark.slow
def test_programs_that_are_no_nets_are_refused_with_what_to_export(tmp_path: Path) -> None:
    images, file = torch.rand(2, 1, 6, 6), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(small_net(), (images,)), file)
    with pytest.raises(UsageError, match=r"net.pt2: .* batches of 2 alone; .*dynamic_shapes"):
        load_program(file)
    with pytest.raises(UsageError, match=r"takes 1 inputs and gives 2"):
        as_program(Two(36, 3), images, file)
    with pytest.raises(UsageError, match=r"aten.rand_like.* draws random numbers"):
        as_program(Noisy(36, 3), images, file)


class Branching(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        flat = super().forward(inputs.flatten(1))
        return flat if float(flat.detach().sum()) > 0 else flat * 2


@pytest.mark.slow
def test_a_net_that_cannot_be_exported_is_recorded_without(tmp_path: Path) -> None:
    with noted(r"the record has no net, .* give it to the audit, fedpriv.audit\(folder, model=net\)"):
        record = recorded(tmp_path / "record", rounds=1, net=Branching(36, 3))
    assert record.facts.net is None
    assert len(record.lines) == 4 and FolderRecord(record.folder, small_net()).net.head == "3"


@pytest.mark.slow
def test_a_recorder_that_goes_on_keeps_the_first_net(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record", rounds=1, net=small_net()).folder
    before = (folder / PROGRAM).read_bytes()
    record = recorded(folder, rounds=1, net=small_net())
    assert (folder / PROGRAM).read_bytes() == before and record.facts.net == PROGRAM
    assert not list(folder.glob("*.part"))


@pytest.mark.slow
def test_images_pass_a_classifier_of_transformers(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(image_size=6, patch_size=3, num_channels=1, **sizes)
    config.save_pretrained(str(tmp_path / "vit"))
    config.num_labels = 3
    own = ViTForImageClassification(config).eval()
    data = samples(6, 1)
    with fedpriv.recording(
        tmp_path / "record", classes=3, input_shape=(1, 6, 6), net=f"transformers:{tmp_path / 'vit'}"
    ) as record:
        record.truth("a", *data)
        record.sent(1, "a", own.state_dict())
        gradient = torch.autograd.grad(F.cross_entropy(own(pixel_values=data[0]).logits, data[1]), list(own.parameters()))
        record.answered(1, "a", dict(zip(dict(own.named_parameters()), gradient, strict=True)), kind="gradient")
    folder = AuditedFolder(tmp_path / "record")
    assert folder.net.head == "classifier" and "as the record declares" in folder.sentence
    net = folder.update(folder.message(1, 0)).model.eval()
    assert torch.equal(net(data[0]), own(pixel_values=data[0]).logits)


def test_texts_pass_a_classifier_of_transformers(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    from fedpriv.models.text.tiny import tiny_encoder

    tokenizer, tiny = tiny_encoder(["a small text", "of few words"])
    tokenizer.save_pretrained(str(tmp_path / "bert"))
    tiny.save_pretrained(str(tmp_path / "bert"))
    pad = tokenizer.pad_token_id
    config = BertConfig.from_pretrained(str(tmp_path / "bert"), num_labels=3)
    own, ids = BertForSequenceClassification(config), torch.randint(len(tokenizer), (4, 6))
    ids[:2, 4:] = pad
    facts = {"classes": 3, "input_shape": (6,), "encoder": str(tmp_path / "bert")}
    with fedpriv.recording(
        tmp_path / "record",
        net=f"transformers:{tmp_path / 'bert'}",
        arguments={"hidden_dropout_prob": 0.0},
        training={"lr": 0.5, "local_epochs": 1, "batch_size": 4},
        **facts,
    ) as record:
        record.truth("a", ids, torch.arange(4) % 3)
        record.sent(1, "a", own.state_dict())
        record.answered(1, "a", own.state_dict())
    folder = FolderRecord(tmp_path / "record")
    assert folder.text is not None and folder.text.words == "body.bert.embeddings.word_embeddings.weight"
    net = folder.update(folder.message(1, 0)).model.eval()
    expected = own.eval()(input_ids=ids, attention_mask=(ids != pad).long()).logits
    assert torch.equal(net(ids), expected) and trained(net, (ids, torch.arange(4) % 3)).keys() == own.state_dict().keys()
    assert any(isinstance(module, nn.Dropout) and module.p == 0 for module in net.modules())


@pytest.mark.parametrize(
    ("name", "facts", "why"),
    [
        ("transformers:no/such-model", {}, r"not on this machine .*hf download no/such-model config.json"),
        ("transformers:x", {"input_shape": (1,), "columns": [{"name": "a"}]}, "no class for nets of rows"),
    ],
)
def test_no_model_is_downloaded(tmp_path: Path, name: str, facts: dict[str, Any], why: str) -> None:
    fedpriv.recording(tmp_path / "record", **{"classes": 3, "input_shape": (1, 6, 6), "net": name, **facts})
    with pytest.raises(UsageError, match=why):
        FolderRecord(tmp_path / "record")
