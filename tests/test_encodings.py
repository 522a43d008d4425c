"""Text is UTF-8, whatever the locale is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_BE_TEXT = re.compile(r"_text\(|open\(|text=|NamedTemporaryFile|TextIOWrapper")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def by_locale(source: str) -> Iterator[int]:
    """The lines of calls that read or write text in the encoding of the locale."""
    for call in ast.walk(ast.parse(source)) if MAY_BE_TEXT.search(source) else ():
        if isinstance(call, ast.Call) and not {"encoding", None} & {word.arg for word in call.keywords} and _is_text(call):
            yield call.lineno


def _is_text(call: ast.Call) -> bool:
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    words = {word.arg: word.value for word in call.keywords}
    if name in ("read_text", "write_text", "TextIOWrapper"):
        return True
    if name in ("run", "Popen", "check_output"):
        return "text" in words
    if name not in ("open", "fdopen", "NamedTemporaryFile"):
        return False
    place = 1 if name == "fdopen" or (name == "open" and not method) else 0  # of the mode
    mode = words.get("mode", call.args[place] if len(call.args) > place else None)
    if mode is None:
        return name in ("open", "fdopen")
    text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""
    return re.fullmatch("[rwaxt+]+", text) is not None  # else binary, or the method `open` of another class


@pytest.mark.parametrize(
    ("code", "depends"),
    [
        ("open('a')", True),
        ("open('a', 'rb')", False),
        ("path.open()", True),
        ("path.open('w')", True),
        ("path.open(mode='a')", True),
        ("RunFolder.open(path)", False),
        ("path.read_text(errors='replace')", True),
        ("path.write_text(x, encoding='utf-8')", False),
        ("subprocess.run(x, text=True)", True),
        ("subprocess.run(x)", False),
        ("os.fdopen(1, 'wb')", False),
        ("os.fdopen(1, 'w')", True),
        ("io.TextIOWrapper(raw)", True),
    ],
)
def test_which_calls_depend_on_the_locale(code: str, depends: bool) -> None:
    assert bool(list(by_locale(code))) == depends


def test_no_file_is_read_or_written_by_the_locale() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("fedpriv", "attacks", "experiments", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.py")
        for line in by_locale(path.read_text(encoding="utf-8"))
    ]
    assert not calls


@pytest.mark.slow
def test_a_command_in_a_locale_without_the_letters(tmp_path: Path) -> None:
    rows = "".join(f"{i * 7 % 31}.5,{'Köln' if i % 2 else 'Bonn'},{'gesünd' if i % 3 else 'krank'}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("größe,ort,label\n" + rows, encoding="utf-8")
    keys = "data: {name: a.csv, partition: {name: by_column, column: ort}}\nmethod: fedavg\ntrain: {rounds: 1}\nrun_dir: run\n"
    (tmp_path / "c.yaml").write_text("# für Köln\n" + keys, encoding="utf-8")

    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "fedpriv", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **ASCII}, capture_output=True, encoding="utf-8", timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said("train", "--config", "c.yaml", "--tracking-uri", "none")
    shown = said("data", "show", "--config", "c.yaml")
    assert "K\\xf6ln" in shown and "ges\\xfcnd" in shown
    said("audit", "run", "--messages", "1", "--label-shadows", "0", "--membership-shadows", "0")
