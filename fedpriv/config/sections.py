"""What sections of the config are: pydantic models that refuse what they do not know; and a name with options of its own."""

from __future__ import annotations

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
