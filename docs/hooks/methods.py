"""A page of each method, from the registry, its paper's report and docs/methods/notes/, which has what a person wrote on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from catalogue import as_json, options
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from plain import plain

from fedpriv.aggregation import aggregations
from fedpriv.methods import methods
from fedpriv.methods.base import options_of
from fedpriv.objectives import objectives

NOTES = Path(__file__).parents[1] / "methods" / "notes"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FOUND = re.compile(r"^### What (?:the paper says|that means)\n(.*?)(?=^###? |\Z)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages in the navigation."""
    section = next(entry["Methods"] for entry in config.nav if "Methods" in entry)
    section.extend(f"methods/{name}.md" for name in sorted(methods()))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for row in as_json("methods")["methods"]:
        files.append(File.generated(config, f"methods/{row['name']}.md", content="\n".join(page(row))))
    return files


def table() -> Iterator[str]:
    """All methods, with links to their pages."""
    yield "| method | what it does | paper | shares |\n|---|---|---|---|"
    for row in as_json("methods")["methods"]:
        shares = ", ".join(role for role in row["shares"] if role != "predictor") or "nothing"
        yield f"| [{row['name']}]({row['name']}.md) | {plain(row['title'])} | {row['paper']} | {shares} |"


def page(row: Mapping[str, Any]) -> Iterator[str]:
    name = row["name"]
    yield f"# {name}\n\n{plain(row['title'])}\n\n{row['paper']}\n\n    fedpriv train --method {name}\n"
    note = NOTES / f"{name}.md"
    if note.exists():
        yield note.read_text(encoding="utf-8")
    yield from measured(name)
    yield "## What is sent, and what stays\n\n| what | which |\n|---|---|"
    yield f"| sent, and merged by the server | {', '.join(row['shares']) or 'nothing'} |"
    yield f"| stays on the client | {plain('; '.join(row['keeps'])) or 'nothing'} |"
    yield f"| also sent | {plain('; '.join(row['sends_besides'])) or 'nothing'} |"
    if row["aggregation"]:
        yield f"| objective | [{row['objective']}](parts.md#{row['objective']}) |"
        yield f"| aggregation | [{row['aggregation']}](parts.md#aggregation-{row['aggregation']}) |"
        origin = "is broadcast" if row["broadcasts_initial_model"] else "is made by each client, from the seed"
        yield f"| the initial model | {origin} |"
    for key, value in row["suggests"].items():
        yield f"| suggests | [`{key}`](../reference/config.md#{key}) = `{value}` |"
    yield "\nA predictor is there only where the net has one.\n\n## Options\n"
    yield from options(row["options"], options_of(methods()[name]), "method.")


def measured(name: str) -> Iterator[str]:
    """The claims of a method's paper beside what was measured, from its report."""
    report = EXPERIMENTS / name / "REPORT.md"
    if not report.exists():
        return
    yield (
        f"## What the paper claims, and what was found\n\n[The report](../experiments/{name}/REPORT.md) has the tables behind "
        "this, and what differs from the paper's setting.\n"
    )
    for title, body in SECTION.findall(report.read_text(encoding="utf-8")):
        if findings := FOUND.findall(body):
            yield f"### {title}\n\n" + "\n".join(findings)


def parts(kind: str) -> Iterator[str]:
    """All objectives, or all aggregations, with their options."""
    known, prefix = (objectives(), "") if kind == "objective" else (aggregations(), "aggregation-")
    for row in as_json("methods")[f"{kind}s"]:
        yield f"### {row['name']} {{ #{prefix}{row['name']} }}\n\n{plain(row['title'])}\n\n{row['paper']}\n"
        for key, words in (("keeps", "The client keeps"), ("sends_besides", "Also sent")):
            if row[key]:
                yield f"{words}: {plain('; '.join(row[key]))}.\n"
        yield from options(row["options"], known[row["name"]].Params, f"{kind}.")
