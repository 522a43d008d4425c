"""Listings are kept in the user's cache, so that names are shown, and refused, without importing PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedpriv.cli import listing, main

PLUGIN = """
from dataclasses import dataclass
from fedpriv.methods import register, Method
from fedpriv.methods.fedavg import FedAvg

@register("my-own")
class MyOwn(FedAvg):
    "A method of a plug-in."
"""
CHILD = """
import sys
from click.testing import CliRunner
from fedpriv.cli import main
for command in (["methods"], ["methods", "moon"], ["attacks"], ["defenses"], ["models"], ["data", "list"]):
    assert CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False).exit_code == 0
    assert "torch" not in sys.modules, command
for command in (["train", "--method", "fedavgg"], ["attack", "dlgg"]):
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2 and "did you mean" in refused.output, refused.output
    assert "torch" not in sys.modules, command
"""
REFUSED = """
import sys
from click.testing import CliRunner
from fedpriv.cli import main
train = ["train", "--dataset", "cells.csv", "--lr", "0.1"]
for more, why in (
    (["--method", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'"),
    (["--objective", "moo"], "unknown objective 'moo'; did you mean 'moon'"),
    (["--aggregation", "fednovo"], "unknown aggregation 'fednovo'; did you mean 'fednova'"),
    (["--partition", "dirichlett"], "unknown partition 'dirichlett'; did you mean 'dirichlet'"),
    (["--model", "mlp22"], "unknown model 'mlp22'; did you mean 'mlp2'"),
    (["--device", "tpu"], "device 'tpu' is not supported, only cpu, cuda, mps"),
    (["--device", "cuda"], "device 'cuda' is not available here: this machine has no driver of a GPU"),
    (["--set", "data.label=outcom"], "cells.csv has no column 'outcom'; its columns are: size, outcome"),
    (["--partition", "by_column", "--column", "hospita"], "cells.csv has no column 'hospita'; its columns are: size, outcome"),
):
    refused = CliRunner().invoke(main, [*train, *more])
    assert refused.exit_code == 2 and why in refused.output, (more, refused.output)
    heavy = {"torch", "pandas", "datasets", "pyarrow"} & sys.modules.keys()
    assert not heavy, (more, heavy)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedpriv" / "listings"


def rows(*command: str) -> dict[str, list[dict[str, object]]]:
    shown = CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False)
    answer: dict[str, list[dict[str, object]]] = json.loads(shown.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_from_the_second_time_on_without_pytorch() -> None:
    for command in (["methods"], ["attacks"], ["defenses"], ["models"], ["data", "list"]):
        assert rows(*command) == rows(*command)
    done = subprocess.run([sys.executable, "-c", CHILD], env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux" or any(Path("/dev").glob("nvidia*")), reason="there may be a GPU")
def test_what_a_run_cannot_have_is_refused_before_anything_large_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "cells.csv").write_text("size,outcome\n1,0\n2,1\n")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], env=dict(os.environ), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_names_that_are_known_without_pytorch_are_those_that_are_registered() -> None:
    from fedpriv.aggregation import aggregations, find_aggregation
    from fedpriv.api.request import registered
    from fedpriv.data.partition_rules import partitions
    from fedpriv.methods import methods
    from fedpriv.models.registry import model_names
    from fedpriv.objectives import objectives

    for kind, known in {
        "method": methods(),
        "objective": objectives(),
        "model": model_names(),
        "partition": partitions(),
    }.items():
        assert registered(kind) == set(known), kind
    aliases = registered("aggregation") - set(aggregations())
    assert registered("aggregation") >= set(aggregations()) and all(find_aggregation(name) for name in aliases)


@pytest.mark.slow
def test_options_have_listings_of_their_own(own_cache: Path) -> None:
    wide, narrow = rows("models"), rows("models", "--projection", "64")
    assert len(list(own_cache.iterdir())) == 2
    assert wide["models"][0]["projection"] == 128 and narrow["models"][0]["projection"] == 64


def test_changed_code_is_listed_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows("defenses")
    sources = [*listing._sources()]
    monkeypatch.setattr(listing, "_sources", lambda: iter([*sources, ("new.py", 1, 1)]))
    assert rows("defenses") == before and len(list(own_cache.iterdir())) == 2


@pytest.mark.slow
def test_plugins_are_listed_and_never_kept(own_cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    done = subprocess.run(
        [sys.executable, "-m", "fedpriv", "methods", "my-own", "--plugin", str(file)], capture_output=True, text=True, timeout=120
    )
    assert "A method of a plug-in." in done.stdout and not own_cache.exists()


def test_a_damaged_or_unwritable_cache_is_no_failure(own_cache: Path) -> None:
    before = rows("defenses")
    (kept,) = own_cache.iterdir()
    kept.write_text("{")
    assert rows("defenses") == before
    kept.unlink()
    own_cache.rmdir()
    own_cache.write_text("a file in the folder's place")
    assert rows("defenses") == before


def test_what_is_installed_since_is_looked_for(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows("defenses")
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert rows("defenses") == before and len(list(own_cache.iterdir())) == 1
    metadata = tmp_path / "site" / "mine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    assert rows("defenses") == before and len(list(own_cache.iterdir())) == 2
    (metadata / "entry_points.txt").write_text("[fedpriv.defenses]\nmine = nowhere_at_all\n")
    os.utime(metadata, ns=(1, 1))
    rows("defenses")
    assert len(list(own_cache.iterdir())) == 2, "with a plug-in, nothing is kept"
