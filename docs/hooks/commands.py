"""All commands with their options, from click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from plain import plain

from fedpriv.cli import main

COMMON = ("plugin", "debug", "as_json", "help")
"""Options of every command, which are described once."""


def commands() -> Iterator[str]:
    """All of them; first the options that every command has."""
    context = click.Context(main, info_name="fedpriv")
    train = main.commands["train"]
    common = [option for option in train.get_params(context) if option.name in COMMON]
    yield from map(described, common)
    for name in sorted(main.commands):
        yield from section(main.commands[name], context, name)


def section(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    """A command and those under it."""
    context = command.context_class(command, info_name=name, parent=parent, max_content_width=100)
    yield f"\n## {context.command_path} {{ #{context.command_path.replace(' ', '-')} }}\n"
    yield prose(command.help or "")
    if isinstance(command, click.Group):
        for inner in sorted(command.commands):
            yield from section(command.commands[inner], context, inner)
        return
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield from (described(option) for option in command.get_params(context) if option.name not in COMMON)


def prose(text: str) -> str:
    """The help of a command: paragraphs, and what click leaves as it is (after a backspace) as code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    shown = (f"```text\n{p[1:].strip()}\n```" if p.startswith("\b") else p for p in map(str.strip, paragraphs))
    return "\n\n".join(paragraph if paragraph.startswith("```") else plain(paragraph) for paragraph in shown) + "\n"


def described(parameter: click.Parameter) -> str:
    """A term with its type and default, and its help; an argument is in the line of usage alone."""
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return ""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    facts = [] if parameter.is_flag else [kind(parameter)]
    default = parameter.get_default(click.Context(main), call=False)
    if parameter.required:
        facts.append("required")
    elif not parameter.is_flag and isinstance(default, str | int | float) and not isinstance(default, bool):
        facts.append(f"default `{default}`")
    if parameter.envvar:
        facts.append(f"or the variable `{parameter.envvar}`")
    return f"{names} {'; '.join(facts)}".rstrip() + f"\n:   {plain(parameter.help or '')}\n"


def kind(option: click.Option) -> str:
    """What may be given."""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    if isinstance(option.type, click.IntRange | click.FloatRange):
        least = f"{option.type.min} <{'' if option.type.min_open else '='} " if option.type.min is not None else ""
        most = f" <{'' if option.type.max_open else '='} {option.type.max}" if option.type.max is not None else ""
        return f"`{least}x{most}`"
    return f"`{option.metavar or option.type.name.upper()}`"
