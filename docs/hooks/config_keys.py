"""All config keys, as `fedpriv config` explains them."""

from __future__ import annotations

from collections.abc import Iterator

from plain import plain

from fedpriv.cli import config_keys


def keys() -> Iterator[str]:
    """All keys, section by section, each with an anchor of its own."""
    every = config_keys.keys()
    for section, about in config_keys.sections().items():
        yield f"\n## {section or 'The run'} {{ #section-{section or 'run'} }}\n\n{plain(about)}\n"
        for key in every:
            if key.name.rpartition(".")[0] == section:
                says = f"{key.values}; default `{key.default}`"
                yield f"`{key.name}`{{ #{key.name} }} {says}\n:   {plain(key.description)}\n"
