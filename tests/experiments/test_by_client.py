"""What a report says client by client, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_results import write_result, write_yaml

from fedpriv.experiments import Result, read, report
from fedpriv.experiments.by_client import AGES, by_age, gains
from fedpriv.experiments.paired import clients_better
from fedpriv.experiments.stored import stored_results

RUNS = {name: {"method": {"name": name}} for name in ("local", "fedavg", "fedrep")}
FLAT = {10: 0.5, 20: 0.5}


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    """Two seeds of ``local`` and ``fedrep``, one of ``fedavg``; one client of ``fedrep`` was not tested."""
    path = write_yaml(tmp_path, runs=RUNS, seeds=[0, 1])
    for seed in (0, 1):
        write_result(path, "local", seed, FLAT, per_client=[0.5, 0.5, 0.5, 0.5])
        write_result(path, "fedrep", seed, FLAT, per_client=[0.6, 0.5, 0.2 + 0.4 * seed, 0.7])
    write_result(path, "fedavg", 1, FLAT, per_client=[0.1, 0.1, 0.1, 0.1])
    return path


def with_updates(path: Path, label: str, seed: int, updates: list[int | None], at_end: list[float | None]) -> None:
    file = read(path).result_file(label, seed)
    result = Result.load(file)
    summary = {"last_update_per_client": updates, "accuracy_per_client_at_end": at_end}
    replace(result, summary=result.summary | summary).write(file)


def test_gains_are_of_the_same_client_and_seed(yaml_file: Path) -> None:
    results, *_ = stored_results(read(yaml_file))
    by_client = gains(results)
    assert by_client is not None and by_client.alone == "local" and list(by_client.of) == ["fedavg", "fedrep"]
    assert by_client.of["fedavg"] == pytest.approx([-0.4] * 4)
    assert by_client.of["fedrep"] == pytest.approx([0.1, 0.0, -0.3, 0.2, 0.1, 0.0, 0.1, 0.2])
    assert gains({label: of for label, of in results.items() if label != "local"}) is None
    assert gains({"local": results["local"]}) is None


def test_runs_with_other_clients_have_no_gains(tmp_path: Path) -> None:
    """Of two seeds of ``fedrep``, one has 4 clients like ``local``; ``fedavg`` has none such."""
    path = write_yaml(tmp_path, runs=RUNS, seeds=[0, 1])
    for seed in (0, 1):
        write_result(path, "local", seed, FLAT, per_client=[0.5] * 4)
        write_result(path, "fedavg", seed, FLAT, per_client=[0.6] * 8)
        write_result(path, "fedrep", seed, FLAT, per_client=[0.6] * (4 + seed))
    results, *_ = stored_results(read(path))
    by_client = gains(results)
    assert by_client is not None and by_client.of == {"fedrep": pytest.approx([0.1] * 4)}
    assert clients_better(results["fedrep"][0], results["local"][0]) == 1
    assert clients_better(results["fedavg"][0], results["local"][0]) is None


def test_clients_are_grouped_by_rounds_since_their_last_update(yaml_file: Path) -> None:
    """Of 20 rounds: last local updates in rounds 20, 16, 15 and 5 are 0, 4, 5 and 15 rounds old."""
    assert by_age(stored_results(read(yaml_file))[0]) == {}, "results of earlier versions do not say it"
    with_updates(yaml_file, "fedrep", 0, [20, 16, 15, 5], [0.9, 0.7, 0.6, 0.5])
    with_updates(yaml_file, "fedrep", 1, [20, None, 1, 5], [0.8, 0.1, None, 0.3])
    (groups,) = by_age(stored_results(read(yaml_file))[0]).values()
    assert AGES == (0, 5, 10, 20, 40)
    assert [count for count, _ in groups] == [3, 1, 2, 0, 0]
    assert [mean for _, mean in groups] == [pytest.approx(0.8), pytest.approx(0.6), pytest.approx(0.4), None, None]


@pytest.mark.slow
def test_both_are_in_the_report(yaml_file: Path) -> None:
    with_updates(yaml_file, "fedrep", 0, [20, 16, 15, 5], [0.9, 0.7, 0.6, 0.5])
    (record,) = report(yaml_file)["experiments"]
    text = (yaml_file.parent / "results" / "tiny.md").read_text()
    assert "![gains by client](tiny-gains.png)" in text and Path(record["gains_plot"]).stat().st_size > 10_000
    assert "| method | 0 to 4 rounds | 5 to 9 rounds | 10 to 19 rounds | 20 to 39 rounds | 40 and more rounds |" in text
    assert "| fedrep | 80.00 (2) | 60.00 (1) | 50.00 (1) | – | – |" in text


def test_no_table_of_ages_where_all_clients_trained_lately(yaml_file: Path) -> None:
    with_updates(yaml_file, "fedrep", 0, [20, 18, 17, 16], [0.9, 0.7, 0.6, 0.5])
    report(yaml_file)
    assert "since a client last took part" not in (yaml_file.parent / "results" / "tiny.md").read_text()
