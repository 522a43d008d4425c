"""Records of rows of a table and of texts are attacked as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.attacks.attack import row_attacks, text_attack
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.scoring.row_scores import in_order, right_cells
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.progress import Progress
from fedpriv.audit.rows.attributes import infer_attributes
from fedpriv.audit.text.samples import requests
from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.models.text.tiny import tiny_encoder
from tests.recorder.loop import trained

COLUMNS = (NumberColumn("age", 40, 12, gaps=True), CategoryColumn("sex", ("f", "m"), other=False), NumberColumn("income", 30, 5))
ENCODING = RowEncoding(COLUMNS)
LENGTH = 16
TRAINING = {"lr": 0.5, "local_epochs": 1, "batch_size": 4}


def row_net() -> nn.Module:
    return nn.Sequential(nn.Linear(ENCODING.width, 16), nn.ReLU(), nn.Linear(16, 2))


class TextNet(nn.Module):
    def __init__(self, words: int, pad: int) -> None:
        super().__init__()
        self.pad, self.words, self.top = pad, nn.Embedding(words, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != self.pad)[..., None]
        logits: Tensor = self.top((self.words(ids) * mask).sum(1) / mask.sum(1))
        return logits


def recorded(folder: Path, net: Callable[[], nn.Module], samples: Tensor, labels: Tensor, **facts: Any) -> AuditedFolder:
    """Two clients with four samples each, in one round."""
    torch.manual_seed(0)
    model = net()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with fedpriv.recording(folder, training=TRAINING, **facts) as record:
        record.public(samples[8:], labels[8:])
        for client in range(2):
            own = samples[4 * client : 4 * client + 4], labels[4 * client : 4 * client + 4]
            record.truth(client, *own)
            record.sent(1, client, weights)
            model.load_state_dict(weights)
            record.answered(1, client, trained(model, own), num_examples=4)
    return AuditedFolder(folder, net())


@pytest.fixture
def table(tmp_path: Path) -> AuditedFolder:
    rows = made_up_rows(ENCODING, 60, torch.Generator().manual_seed(0))
    facts = {"classes": 2, "input_shape": (ENCODING.width,), "columns": COLUMNS}
    return recorded(tmp_path / "table", row_net, rows, torch.arange(60) % 2, **facts)


def test_rows_of_single_clients_are_recovered(table: AuditedFolder) -> None:
    assert table.encoding == ENCODING and table.modalities == () and table.cannot_simulate is None
    alone = table.alone(1, 0, 5)
    assert alone.samples == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    rows = torch.stack([table.rows(client)[at] for client, at in alone.samples])
    read = [row_attacks()["closed-form"]().run([table.observation(message, ThreatModel())]) for message in alone.messages]
    ordered, _ = in_order(torch.cat([result.raw for result in read]), rows, ENCODING, len(rows))
    assert right_cells(ordered, rows, ENCODING).all()


def test_hidden_cells_are_asked_of_the_messages(table: AuditedFolder) -> None:
    attributes = infer_attributes(table, [(1, 0)], 0, Progress(lambda text: None, None))
    assert attributes.refused is not None and "rows, and" in attributes.refused.text  # one other client, with four rows


def test_texts_are_read_by_the_attacks_on_texts(tmp_path: Path) -> None:
    texts, labels = requests()
    tokenizer, config = tiny_encoder(texts)
    tokenizer.save_pretrained(str(tmp_path / "encoder"))
    config.save_pretrained(str(tmp_path / "encoder"))
    ids = tokenise(texts[::9], tokenizer, LENGTH)[0].long()
    facts = {"classes": 4, "input_shape": (LENGTH,), "encoder": str(tmp_path / "encoder")}
    record = recorded(
        tmp_path / "texts", lambda: TextNet(len(tokenizer), tokenizer.pad_token_id), ids[:, :12], labels[::9], **facts
    )
    assert record.modalities == ("text",) and record.texts(0).shape == (4, LENGTH) and record.cannot_simulate is None
    seen = record.observation(record.message(1, 0), ThreatModel())
    assert seen.text is not None and (seen.text.words, seen.text.positions) == ("body.words.weight", None)
    found = text_attack("tokens")().run([seen], 0)
    sent = set(record.texts(0).flatten().tolist()) - {seen.text.pad, *seen.text.special}
    assert sent <= set(found.counts[0].nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"input_shape": (3,), "columns": COLUMNS}, "columns have 5 entries"),
        ({"input_shape": (1, 6, 6), "columns": COLUMNS}, "that of a row"),
        ({"input_shape": (5,)}, "that of an image"),
        ({"input_shape": (5,), "columns": COLUMNS, "encoder": "x"}, "rows of a table, or texts"),
        ({"input_shape": (1,), "columns": [{"name": "a", "median": 3}]}, "columns.0"),
    ],
)
def test_facts_of_samples_that_cannot_be_right_are_refused(tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fedpriv.recording(tmp_path / "record", classes=2, **facts)


def test_a_net_without_a_word_embedding_is_no_net_of_texts(tmp_path: Path) -> None:
    texts, labels = requests()
    tokenizer, config = tiny_encoder(texts)
    tokenizer.save_pretrained(str(tmp_path / "encoder"))
    config.save_pretrained(str(tmp_path / "encoder"))

    class Bare(nn.Linear):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids.float())

    ids = tokenise(texts[:12], tokenizer, LENGTH)[0].long()
    whole = lambda: nn.Sequential(Bare(ids.shape[1], 8), nn.Linear(8, 4))  # noqa: E731
    with pytest.raises(UsageError, match="no embedding of the net takes token ids"):
        recorded(
            tmp_path / "r", whole, ids, labels[:12], classes=4, input_shape=(ids.shape[1],), encoder=str(tmp_path / "encoder")
        )
