"""The base of the config's sections: pydantic models that refuse unknown keys; and a name with options of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NamedOptions(BaseModel):
    """A name and its own options; the options are checked by what is named, such as a method's ``Params``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def sections_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and those within it, each with the beginning of its dotted keys, such as ``"data.partition."``."""
    yield prefix, section
    for name in section.model_fields:
        if (inner := inner_section(section, name)) is not None:
            yield from sections_of(inner, f"{prefix}{name}.")


def inner_section(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section that is a field of another one; ``None``: the field is a key."""
    kind = section.model_fields[name].annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not NamedOptions else None


def keys_of(section: type[BaseModel]) -> list[str]:
    """The dotted keys of a section and of those within it."""
    return [
        prefix + name
        for prefix, inner in sections_of(section)
        for name in inner.model_fields
        if inner_section(inner, name) is None
    ]
