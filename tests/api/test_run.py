"""A run object reads its folder: figures, history, plot, messages."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

import matplotlib as mpl
import pytest

import fedpriv
from fedpriv.api.run import Run
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import unseal
from tests.api.conftest import SMALL


def test_figures_are_those_of_the_summary(run: fedpriv.Run) -> None:
    summary = run.summary
    assert summary is not None and run.status == "finished"
    found = (run.accuracy, run.per_client, run.rounds, run.bytes_up, run.bytes_down, run.seconds)
    keys = ("accuracy", "accuracy_per_client", "rounds", "bytes_up", "bytes_down", "seconds")
    assert found == tuple(summary[key] for key in keys)
    assert len(run.per_client) == SMALL["clients"]


def test_history_has_a_row_a_round(run: fedpriv.Run) -> None:
    history = run.history
    assert list(history.index) == [0, 1, 2, 3] and history.index.name == "round"
    assert history.bytes_up.sum() == run.bytes_up and history.bytes_down.sum() == run.bytes_down
    assert history.accuracy[1:].mean() == pytest.approx(run.accuracy) and history.accuracy.isna()[0]


def test_a_plot_of_the_accuracy(run: fedpriv.Run) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    axes = run.plot()
    assert list(axes.lines[0].get_ydata()) == list(run.history.accuracy[1:])
    assert run.plot(axes) is axes and len(axes.lines) == 2
    pyplot.close(axes.figure)


def test_messages_as_they_were_sent(run: fedpriv.Run) -> None:
    assert (3, 0) in run.payloads
    sealed = run.payload(round=3, client=0)
    assert (sealed.round, sealed.client) == (3, 0)
    assert unseal((run.path / "payloads" / "round-0003" / "client-0000.safetensors").read_bytes()) == sealed
    received = run.download(3)
    assert received is not None and received.names == sealed.names and run.download(0) is None  # fedavg broadcasts nothing
    with pytest.raises(fedpriv.UsageError, match="kept no uploads of round 7, but of rounds 1, 2, 3"):
        run.payload(round=7, client=0)


def test_a_run_is_loaded_by_folder_by_name_and_as_itself(run: fedpriv.Run) -> None:
    for how in (run, run.path, str(run.path)):
        assert fedpriv.load(how).path == run.path
    assert fedpriv.load(run.name, runs_dir=run.path.parent).path == run.path
    assert os.fspath(run) == str(run.path)
    with pytest.raises(fedpriv.UsageError, match="no run 'nothing'"):
        fedpriv.load("nothing", runs_dir=run.path.parent / "nowhere")


def test_it_shows_itself(run: fedpriv.Run) -> None:
    assert run.accuracy is not None
    assert f"{run.accuracy:.1%}" in repr(run) and "finished" in repr(run) and "\n" not in repr(run)
    assert f"{run.bytes_up:,} B" in run._repr_html_() and str(run.path) in run._repr_html_()


def test_names_of_foreign_folders_are_text(run: fedpriv.Run, tmp_path: Path) -> None:
    foreign = tmp_path / "<script>alert(1)"
    foreign.symlink_to(run.path)
    shown = Run(RunFolder.open(foreign))._repr_html_()
    assert "<script>" not in shown and escape("<script>") in shown


def test_compare_has_a_row_a_run(run: fedpriv.Run, tmp_path: Path) -> None:
    other = fedpriv.train(run.config, runs_dir=tmp_path, seed=1)
    table = fedpriv.compare([run, other])
    assert list(table.index) == [run.name, other.name] and list(table.label) == ["fedavg", "fedavg"]
    assert list(table.accuracy) == [run.accuracy, other.accuracy] and list(table.bytes_up) == [run.bytes_up] * 2
    assert table.groupby("label").accuracy.agg(["mean", "std"]).shape == (1, 2)
    assert list(fedpriv.compare(run).index) == [run.name]
    with pytest.raises(fedpriv.UsageError, match="no runs to compare"):
        fedpriv.compare([])
