"""The tutorials run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_runs(tutorial: Path, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="needs the group docs: uv run --group docs pytest tests/test_tutorials.py")
    import nbformat

    book = nbformat.read(tutorial, as_version=4)
    client.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [str(output) for cell in book.cells for output in cell.get("outputs", ())]
    assert shown and not [text for text in shown if "fedpriv: " in text or "Traceback" in text]
