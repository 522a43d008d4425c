"""Printing, for all commands: markup in a name is not followed, no escape sequence gets through, and no secret is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from fedpriv.errors import UsageError
from fedpriv.untrusted.addresses import hide_secrets
from fedpriv.untrusted.names import printable, shortened

_LONGEST = 600
"""Letters of an error; some libraries' messages fill a page."""


def say(text: str, err: bool = False) -> None:
    """Print a line."""
    click.echo(shown(text), err=err)


def shown(text: str) -> str:
    """A text as it may be printed; its line breaks stay."""
    return printable(hide_secrets(text))


def shown_error(error: BaseException) -> str:
    """An error in one line, cut in its middle where it is long: what is wrong comes first, and what would be right last."""
    return shortened(shown(" ".join(str(error).split())), _LONGEST, 200)


def terminal(err: bool = False) -> Any:
    """A rich console that prints strings as they are, on standard output or standard error; :func:`styled` has the styles.

    A string is made :func:`shown` before it is measured, so that columns fit; whatever else is printed, as it is printed.
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Terminal(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(shown(text), **how)

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else shown(text), style, control)

    return Terminal(stderr=err, markup=False, emoji=False, highlight=False)


def styled(*parts: str | tuple[str, str]) -> Any:
    """A text of parts that are plain, or (text, style)."""
    from rich.text import Text

    return Text.assemble(*(shown(part) if isinstance(part, str) else (shown(part[0]), part[1]) for part in parts))


def ruled_table(*columns: str, title: str | None = None, **how: Any) -> Any:
    """An empty rich table with a line below its head; long cells are folded.

    Args:
        how: further arguments of :class:`rich.table.Table`.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, **how)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class SafeGroup(click.Group):
    """A group of commands whose usage errors, which repeat what was typed, are printed like all else; ``--json`` holds."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **settings: Any) -> click.Context:
        given = [*args]  # click takes out what it has read
        try:
            context = super().make_context(info_name, args, *more, **settings)
        except click.ClickException as error:
            raise _safe(error, given) from None
        context.meta["fedpriv.given"] = given
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise _safe(error, ctx.meta["fedpriv.given"]) from None


class _Told(click.UsageError):
    """A usage error that is printed in the form of all other errors."""

    def show(self, file: Any = None) -> None:
        asked = f"; `{self.ctx.command_path} -h` shows what is right" if self.ctx is not None else ""
        click.echo(f"fedpriv: {shown_error(self).removesuffix('.')}{asked}  [usage]", err=True)


def _safe(error: click.ClickException, given: list[str]) -> click.ClickException:
    """The error as it may be printed.

    Args:
        given: the command line; where another option is wrong, click may not have read ``--json`` yet.
    """
    if not isinstance(error, click.UsageError) or isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    safe = _Told(shown(error.format_message()), error.ctx)
    if "--json" in given:
        click.echo(json.dumps({"error": shown_error(safe), "family": "usage"}))
    return safe


class FilePath(click.Path):
    """A path that can be shown: not empty, and without line breaks and the like."""

    def __init__(self, **settings: Any) -> None:
        from pathlib import Path

        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the path is empty", param, ctx)
        if not str(value).isprintable():
            self.fail(f"{str(value)!r} holds a character that cannot be shown, such as a line break", param, ctx)
        return super().convert(value, param, ctx)


class SeedsParam(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A number of seeds, or the seeds with commas between them."""

    name = "N or SEED,SEED"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        from fedpriv.api.grid import seeds_of

        try:
            numbers = tuple(int(part) for part in value.split(","))
            return seeds_of(numbers if "," in value else numbers[0])
        except ValueError:
            self.fail(f"{value!r} is neither a number of seeds, such as 3, nor seeds, such as 0,1,5", param, ctx)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class WorkersParam(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A number of processes, ``auto`` or ``ray``."""

    name = "integer, auto or ray"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("auto", "ray") or isinstance(value, int):
            return value
        if not (value.isascii() and value.isdigit() and int(value[:6]) >= 1):
            self.fail(f"{value!r} is neither a number of processes (1 or more) nor auto or ray", param, ctx)
        return int(value)
