"""The roles of a table's columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.data.tables.file_names import file_names
from fedpriv.data.tables.files import is_array
from fedpriv.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from fedpriv.data.tables.files import Table

IMAGE_COLUMNS = ("image", "img", "images", "picture")
TEXT_COLUMNS = ("text", "sentence", "tweet_text", "tweet", "utterance", "question", "query", "review", "content")
LABEL_COLUMNS = ("label", "labels", "fine_label", "character", "class", "category", "intent", "target", "y")


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns; at least an image, a text, or features.

    Attributes:
        features: numbers and categories that together are a sample; none where there is an image or a text.
        notes: what the user should know of this choice, a line each.
        left_out: columns that are no features, each with a reason.
        named: the features that the config names; these rows may lack values of one. Empty: it names none.
        numbers, categories: features that are declared to hold numbers, or categories, which may be written as numbers.
    """

    label: str
    image: str | None = None
    text: str | None = None
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read of every row."""
        return tuple(name for name in (self.image, self.text, self.label, *self.features) if name is not None)


def find_columns(
    table: Table,
    label: str | None = None,
    client: str | None = None,
    named: Sequence[str] | None = None,
    dropped: Sequence[str] = (),
) -> Columns:
    """The columns of image, text and label, found by Hugging Face type where it is stated, otherwise by common names. Without
    images and texts, all other numbers and categories are features.

    Args:
        label: the column of the labels; ``None``: found.
        client: a column that says whose a row is, which is nothing else.
        named: the columns that are features, of a table of numbers and categories; ``None``: all that can be.
        dropped: columns that are not used.

    Raises:
        UnknownName: a named or dropped column is not there.
        UsageError: one of them is that of the labels or the clients; there is no label, or neither an image, a text nor a
            feature; the message lists the columns.
    """
    import datasets

    from fedpriv.data.user_data.numbers import no_number, numbers_of
    from fedpriv.data.user_data.vectors import array_shape, choose_features, has_words, is_text

    for name in (label, client):
        if name is not None and name not in table.features:
            raise UsageError(f"{table.origin} has no column {name!r}; its columns are: {', '.join(table.features)}")
    features = {name: kind for name, kind in table.features.items() if name != client and name not in dropped}
    others = [name for name in features if name not in (named or ())]
    labels = [name for name in others if isinstance(features[name], datasets.ClassLabel)]
    image = image_column(features)
    guessed = label is None
    label = label or choose(labels, LABEL_COLUMNS) or next((name for name in LABEL_COLUMNS if name in others), None)
    _check_named(table, label, client, named, dropped)
    strings = [name for name, kind in features.items() if is_string(kind) and name != label]
    files = {name: names[0] for name in strings if image is None and (names := file_names(table.column(name).to_pylist()))}
    strings = [name for name in strings if name not in files]
    text = next((name for name in TEXT_COLUMNS if name in strings), None)
    if text is not None and image is None and set(features) > {text, label} and _are_levels(table.column(text)):
        text = None  # such as a question with the answers yes and no, beside other columns
    if named is not None:
        image = text = None
    elif image is None and text is None and len(strings) == 1:  # beside numbers, it may be a category
        values = table.column(strings[0])
        is_only_one = set(features) <= {strings[0], label}
        if has_words(values) if is_text(values) else is_only_one:
            text = strings[0] if (no_number(values) or numbers_of(values)) is None else None
    vector, notes, left_out = (
        choose_features(table, label, client, named, dropped) if image is None and text is None else ((), (), ())
    )
    if (image is None) != (text is None) and (unused := sorted(set(features) - {image, text, label})):
        what = f"texts of column {text}" if image is None else f"images of column {image}"
        notes = (f"the samples are the {what}; not used: {', '.join(unused)}",)
    if vector and label is not None:
        notes = (
            *_on_label(table, label, guessed=guessed, others=[name for name in vector if not array_shape(table, name)]),
            *notes,
        )
    missing = "label" if label is None else None
    if image is None and text is None and not vector:
        missing = "image or text"
    if missing or label is None:
        if not len(table.column(next(iter(table.features)))):
            raise UsageError(f"{table.origin} has no rows")
        columns = ", ".join(f"{name} ({_kind(kind)})" for name, kind in table.features.items())
        hint = "; name the one with the texts 'text'" if strings else ""
        if named is None and notes:
            hint += f"; {notes[0]}"
        if files:
            column, name = next(iter(files.items()))
            hint = (
                f"; {column} names files such as {name!r}: images alone are read by their names, from files beside a CSV or "
                "parquet file; give others as arrays, by fedpriv.train(dataset=(x, y))"
            )
        if missing == "label":
            hint = "; --set data.label=NAME says which it is"
        raise UsageError(f"{table.origin} has no recognisable {missing} column; its columns are: {columns}{hint}")
    return Columns(label, image, text, vector, notes, left_out, tuple(named or ()) if vector else ())


def _check_named(
    table: Table, label: str | None, client: str | None, named: Sequence[str] | None, dropped: Sequence[str]
) -> None:
    """Check the columns that a config names as features, and as left out."""
    for key, names in (("data.features", named or ()), ("data.drop", dropped)):
        for name in names:
            if name not in table.features:
                raise UnknownName(f"column in {key}", name, table.features)
            if name in (label, client):
                raise UsageError(f"{key}: column {name!r} is that of the {'labels' if name == label else 'clients'}")
    if both := [name for name in named or () if name in dropped]:
        raise UsageError(f"column {both[0]!r} is in data.features and in data.drop")


def _are_levels(values: pa.ChunkedArray) -> bool:
    """Whether a column has so few distinct values that it is a category."""
    from fedpriv.data.encoding import MOST_LEVELS

    return len(values.unique()) <= MOST_LEVELS


def _on_label(table: Table, label: str, guessed: bool, others: Sequence[str]) -> Iterator[str]:
    """Lines on the column of the labels: which it is, where it was found by its name, and which others may say the same."""
    if guessed:
        also = [name for name in LABEL_COLUMNS if name in others]
        more = f"; {', '.join(also)} {'is a feature' if len(also) == 1 else 'are features'}" if also else ""
        if also or not is_array(table, label):
            yield f"the labels are column {label!r}{more} (--set data.label=NAME names another)"
    classes = table.column(label).to_pylist()
    for name in others:
        values = table.column(name)
        levels = len(values.unique())
        if (
            1 < levels < len(classes) / 2
            and _are_levels(values)
            and levels == len(set(zip(values.to_pylist(), classes, strict=True)))
        ):
            yield f"column {name!r} determines the label: remove it if it is the label in other words"


def image_column(features: Mapping[str, Any]) -> str | None:
    """The column that holds images, by Hugging Face type, or else bytes; ``None``: there is none."""
    import datasets

    typed = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    return choose(typed or [name for name, kind in features.items() if holds_bytes(kind)], IMAGE_COLUMNS)


def choose(candidates: Sequence[str], preferred: Sequence[str]) -> str | None:
    """The first of the preferred names that is a candidate, else the first candidate; ``None``: there is none."""
    return next((name for name in preferred if name in candidates), candidates[0] if candidates else None)


def is_string(kind: Any) -> bool:
    """Whether the type of a column is that of texts."""
    return getattr(kind, "dtype", None) in ("string", "large_string")


def holds_bytes(kind: Any) -> bool:
    """Whether the type of a column is that of bytes, which images are."""
    if isinstance(kind, dict):
        return "bytes" in kind
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _kind(kind: Any) -> str:
    return str(getattr(kind, "dtype", type(kind).__name__))
