"""The tutorials run from top to bottom."""

from __future__ import annotations

import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.processes import CONTEXT

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
IN_A_KERNEL = "own-data-and-net"
"""The one that runs as a reader's does; the others in processes that have imported everything, which halves their time."""
NEEDS = {"your-flower-app": ("deploy", "cluster")}
"""Tutorial -> the extras that it needs."""
pytestmark = pytest.mark.slow


def in_this_process() -> list[Any]:
    """The tutorials but :data:`IN_A_KERNEL`."""
    names = sorted(path.stem for path in FOLDER.glob("*.ipynb") if path.stem != IN_A_KERNEL)
    return [pytest.param(name, marks=[pytest.mark.extra(extra) for extra in NEEDS.get(name, ())]) for name in names]


def played(tutorial: Path, folder: Path) -> list[str]:
    """What a notebook's cells show, run by IPython in this process."""
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    os.chdir(folder)
    sys.path.insert(0, "")  # as a kernel's
    os.environ["IPYTHONDIR"] = str(folder / ".ipython")
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    output, shown = StringIO(), []
    with redirect_stdout(output), redirect_stderr(output):
        for cell in nbformat.read(tutorial, as_version=4).cells:
            if cell.cell_type != "code":
                continue
            done = shell.run_cell(cell.source)
            shown += [] if done.result is None else [str(done.result)]
            if not done.success:
                shown += traceback.format_exception(done.error_in_exec or done.error_before_exec)
                break
    return [output.getvalue(), *shown]


def assert_fine(shown: list[str]) -> None:
    assert any(shown) and not [text for text in shown if "fedpriv: " in text or "Traceback" in text]


@pytest.mark.parametrize("tutorial", in_this_process())
def test_a_tutorial_runs(tutorial: str, tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="needs the group docs: uv run --group docs pytest tests/test_tutorials.py")
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        assert_fine(pool.submit(played, FOLDER / f"{tutorial}.ipynb", tmp_path).result())


def test_a_tutorial_runs_in_a_kernel(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="needs the group docs: uv run --group docs pytest tests/test_tutorials.py")
    import nbformat

    book = nbformat.read(FOLDER / f"{IN_A_KERNEL}.ipynb", as_version=4)
    client.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert_fine([str(output) for cell in book.cells for output in cell.get("outputs", ())])
