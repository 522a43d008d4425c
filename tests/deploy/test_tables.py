"""Clients with a table each, on machines of their own: the same run as a simulation of all tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpriv
from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.server_run import OWN_DATA
from fedpriv.errors import FedprivError, UsageError
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import ALL_KEPT, agree, go_on, hashes, play_apart
from tests.deploy.deployed import LONGEST, SMALL, deployed, same
from tests.deploy.loopback import Loopback
from tests.simulation.small import play

HEAD = "patient,age,sex,pressure,readmitted"
HOSPITALS = ("east", "north", "west")
TRAINED = {"train.participation": 1.0, "train.rounds": 2, **ALL_KEPT}


def rows(hospital: int, count: int = 40, **columns: Any) -> list[str]:
    """Lines of a CSV file. West measures no pressure, and has patients of a sex that no other hospital has five of."""
    draw = np.random.default_rng(hospital)
    lines = []
    for number in range(count):
        cells = {
            "patient": f"P{hospital}-{number}",
            "age": round(float(draw.normal(50 + 9 * hospital, 10)), 1) if number % 7 else "",
            "sex": "fm"[number % 2] if number % 5 or hospital < 2 else "x",
            "pressure": "" if hospital == 2 else int(draw.integers(90, 180)),
            "readmitted": "yes" if draw.random() < 0.4 else "no",
        }
        lines.append(",".join(str({**cells, **columns}[name]) for name in HEAD.split(",")))
    return lines


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A folder with a table for each hospital, for training and for tests."""
    for number, name in enumerate(HOSPITALS):
        folder = tmp_path / "hospitals" / name
        folder.mkdir(parents=True)
        lines = rows(number)
        write(folder / "train.csv", lines[:30])
        write(folder / "test.csv", lines[30:])
    return tmp_path / "hospitals"


def write(file: Path, lines: Sequence[str], head: str = HEAD) -> None:
    file.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def nodes(hospitals: Path, state: Path, label: str = "readmitted", **more: Any) -> Loopback:
    """A grid of clients, each of which has its own table."""
    sources = [Source(str(hospitals / name), label=label) for name in HOSPITALS]
    return Loopback({n: ClientNode(n, source, state / f"client-{n}", **more) for n, source in enumerate(sources)})


def apart(hospitals: Path, run: Path, warnings: list[str] | None = None, **overrides: Any) -> Path:
    """A run with clients on other machines. The config names a table that the clients do not open."""
    grid = nodes(hospitals, run.parent / f"{run.name}-clients")
    asked = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED, **overrides}
    return play_apart(run, overrides.pop("method", "fedavg"), warnings, grid, **asked)


def whole(hospitals: Path, run: Path, **overrides: Any) -> Path:
    """The simulation of the same run."""
    asked = {"data.name": str(hospitals), "data.label": "readmitted", "data.clients": 3, **TRAINED, **overrides}
    play(run, overrides.pop("method", "fedavg"), **asked)
    return run


def test_a_deployment_of_tables_equals_a_simulation_to_the_bit(hospitals: Path, tmp_path: Path) -> None:
    warnings = list[str]()
    agree(apart(hospitals, tmp_path / "apart", warnings), whole(hospitals, tmp_path / "whole"))
    (note,) = warnings
    assert note.startswith("before round 1, each client sends statistics of its training rows") and "at least 5 have" in note
    messages = PayloadStore.of(RunFolder.open(tmp_path / "apart")).statistics()
    assert [(message.kind, message.client) for message in messages] == [
        ("columns", None), *[("levels", client) for client in range(3)],
        ("inquiry", None), *[("statistics", client) for client in range(3)], ("encoding", None),
    ]  # fmt: skip
    columns = json.loads(messages[-1].tensors()["statistic.text"].numpy().tobytes())["columns"]
    assert [column["name"] for column in columns] == ["age", "sex", "pressure"]
    assert sorted(columns[1]["levels"]) == ["f", "m", "x"] and columns[0]["gaps"] and columns[2]["gaps"]
    first = json.loads((tmp_path / "apart" / "metrics.jsonl").read_text().splitlines()[0])["metrics"]
    assert first["bytes_up"] == sum(message.nbytes for message in messages if message.client is not None)
    facts, summary = (json.loads((tmp_path / "apart" / name).read_text()) for name in ("run.json", "summary.json"))
    assert facts["dataset"] == summary["dataset"] == OWN_DATA, "not patients.csv, which no client opened"


def test_a_deployment_of_tables_is_resumed(hospitals: Path, tmp_path: Path) -> None:
    run = apart(hospitals, tmp_path / "apart")
    before = hashes(run, "checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    for path in (*run.glob("checkpoints/*"), *run.glob("payloads/*/*"), run / "metrics.jsonl", run / "summary.json"):
        path.unlink()
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "finished"
    go_on(run, nodes(hospitals, tmp_path / "apart-clients"))
    assert hashes(run, "checkpoints/server-*.safetensors", "payloads/*/*", "weights/*") == before


def test_a_hospital_may_lack_a_class(hospitals: Path, tmp_path: Path) -> None:
    """All of its patients have one label, in training and in tests."""
    for split, lines in (("train", rows(1, readmitted="no")[:30]), ("test", rows(1, readmitted="no")[30:])):
        write(hospitals / "north" / f"{split}.csv", lines)
    warnings = list[str]()
    agree(apart(hospitals, tmp_path / "apart", warnings), whole(hospitals, tmp_path / "whole"))
    assert warnings[0] == "client 1 has no sample of 'yes'"


def test_one_label_in_all_hospitals_is_refused(hospitals: Path, tmp_path: Path) -> None:
    for number, name in enumerate(HOSPITALS):
        for split in ("train", "test"):
            write(hospitals / name / f"{split}.csv", rows(number, readmitted="no"))
    with pytest.raises(UsageError, match=r"training samples .*'no'; a classifier needs two classes"):
        whole(hospitals, tmp_path / "whole")
    with pytest.raises(UsageError, match=r"all samples of all clients have the label 'no'; a classifier needs two classes"):
        apart(hospitals, tmp_path / "apart")


HEADS: Mapping[str, tuple[str, Mapping[str, Any], str, str]] = {
    "a missing column": (
        HEAD.replace("pressure", "pulse"), {},
        "client north lacks the column 'pressure' of client east",
        "client 1 has no column 'pressure', and client 0 has; add it, or leave it out everywhere",
    ),
    "a text among numbers": (
        HEAD, {"age": "old"},
        "column 'age' holds numbers at client east, and texts such as 'old' at client north",
        "column 'age' holds numbers at client 0, and texts at client 1; write numbers in all files",
    ),
    "another unit": (
        HEAD, {"age": "55 %"},
        "column 'age' holds numbers at client east, and texts such as '55 %' at client north",
        "column 'age' is written as plain numbers at client 0, as % at 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_tables_that_differ(name: str, hospitals: Path, tmp_path: Path) -> None:
    head, cells, in_simulation, deployed = HEADS[name]
    for split in ("train", "test"):
        write(hospitals / "north" / f"{split}.csv", rows(1, **cells), head)
    with pytest.raises(UsageError, match=in_simulation):
        whole(hospitals, tmp_path / "whole")
    with pytest.raises(UsageError, match=deployed):
        apart(hospitals, tmp_path / "apart")


def test_a_column_that_no_hospital_fills_is_no_feature(hospitals: Path, tmp_path: Path) -> None:
    for number, name in enumerate(HOSPITALS):
        lines = rows(number, pressure="")
        write(hospitals / name / "train.csv", lines[:30])
        write(hospitals / name / "test.csv", lines[30:])
    agree(apart(hospitals, tmp_path / "apart"), whole(hospitals, tmp_path / "whole"))


def test_a_level_of_test_rows_alone_has_no_entry(hospitals: Path, tmp_path: Path) -> None:
    write(hospitals / "north" / "test.csv", rows(1, sex="unknown")[30:])
    run = apart(hospitals, tmp_path / "apart")
    agree(run, whole(hospitals, tmp_path / "whole"))
    assert "unknown" not in encoding(run)["columns"][1]["levels"]


def test_an_infinite_number_stays_in_the_clients_log(hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(hospitals / "north" / "train.csv", [*rows(1)[:30], "P1-99,inf,f,120,no"])
    with pytest.raises(UsageError, match=r"train\.csv, line 32: column 'age' is inf"):
        whole(hospitals, tmp_path / "whole")
    with pytest.raises(FedprivError, match="client 1 cannot take part: its data cannot be read as the run's config says"):
        apart(hospitals, tmp_path / "apart")
    assert "column 'age' is inf" in capsys.readouterr().err


def test_a_number_that_cannot_be_summed_stays_in_the_clients_log(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(hospitals / "north" / "train.csv", [*rows(1)[:30], "P1-99,1e39,f,120,no"])
    with pytest.raises(FedprivError, match="client 1 cannot take part: its statistics cannot be summed; the client's own log"):
        apart(hospitals, tmp_path / "apart")
    assert "column 'age' holds 1e+39" in capsys.readouterr().err


def test_a_client_names_no_level_of_fewer_rows_than_its_own_file_says(hospitals: Path, tmp_path: Path) -> None:
    grid = nodes(hospitals, tmp_path / "apart-clients", requires=Requires(min_level=5))
    asked = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED}
    with pytest.raises(FedprivError, match=r"this client's own file requires data\.min_level of at least 5"):
        play_apart(tmp_path / "apart", "fedavg", grid=grid, **asked, **{"data.min_level": 1})


def test_images_are_standardised_by_all_clients_pixels(tmp_path: Path) -> None:
    for number, name in enumerate(HOSPITALS):
        images = list(pixels(30, 8, 8) // (number + 1))
        write_folder(tmp_path / "scans" / name / "train", images[:20], [0, 1] * 10)
        write_folder(tmp_path / "scans" / name / "test", images[20:], [0, 1] * 5)
    grid = Loopback({
        n: ClientNode(n, Source(str(tmp_path / "scans" / name)), tmp_path / "apart-clients" / f"client-{n}")
        for n, name in enumerate(HOSPITALS)
    })  # fmt: skip
    asked = {"data.clients": 3, "model.name": "mlp", **TRAINED}
    deployed = {"data.name": "scans", "data.partition.name": "iid", **asked}
    play_apart(tmp_path / "apart", "fedavg", grid=grid, **deployed)
    play(tmp_path / "whole", "fedavg", **{"data.name": str(tmp_path / "scans"), "data.partition.name": "given", **asked})
    agree(tmp_path / "apart", tmp_path / "whole")


def encoding(run: Path) -> Any:
    return json.loads(PayloadStore.of(RunFolder.open(run)).statistics()[-1].tensors()["statistic.text"].numpy().tobytes())


def test_statistics_behind_masks_give_the_same_encoding(hospitals: Path, tmp_path: Path) -> None:
    secure = {"wire.secure_aggregation": True}
    hidden, openly = whole(hospitals, tmp_path / "whole", **secure), whole(hospitals, tmp_path / "open")
    deployed = apart(hospitals, tmp_path / "apart", **secure)
    assert encoding(hidden) == encoding(openly) == encoding(deployed)
    for run in (hidden, deployed):
        (total,) = [message for message in PayloadStore.of(RunFolder.open(run)).statistics() if message.kind == "statistics"]
        assert total.client is None and int(total.tensors()["statistic.rows"]) == 90
    state = ("checkpoints/server-*.safetensors", "weights/*")
    assert hashes(deployed, *state) == hashes(hidden, *state)
    first, other = (json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["metrics"] for run in (hidden, deployed))
    assert first["bytes_up"] == other["bytes_up"] and first["bytes_down"] == other["bytes_down"]


def test_a_secure_sum_of_two_clients_is_refused(hospitals: Path, tmp_path: Path) -> None:
    for path in (hospitals / "west").iterdir():
        path.unlink()
    (hospitals / "west").rmdir()
    with pytest.raises(UsageError, match="statistics of 2 clients with training rows; 3 to 1024 are needed"):
        whole(hospitals, tmp_path / "whole", **{"wire.secure_aggregation": True, "data.clients": 2})


def test_a_client_adds_the_same_statistics_to_no_sum_over_other_clients(hospitals: Path, tmp_path: Path) -> None:
    (hospitals / "zone").mkdir()
    for split in ("train", "test"):
        write(hospitals / "zone" / f"{split}.csv", rows(0)[:20])
    asked = {"data.name": "patients.csv", "data.partition.name": "iid", **TRAINED, "wire.secure_aggregation": True}
    sources = [Source(str(hospitals / name), label="readmitted") for name in (*HOSPITALS, "zone")]
    clients = {n: ClientNode(n, source, tmp_path / "state" / f"client-{n}") for n, source in enumerate(sources)}
    play_apart(tmp_path / "first", "fedavg", grid=Loopback(clients), **asked, **{"data.clients": 4})
    play_apart(tmp_path / "again", "fedavg", grid=Loopback(clients), **asked, **{"data.clients": 4, "seed": 1})
    fewer = Loopback({n: client for n, client in clients.items() if n < 3})
    with pytest.raises(FedprivError, match="the same statistics were summed before over other clients"):
        play_apart(tmp_path / "other", "fedavg", grid=fewer, **asked, **{"data.clients": 3, "seed": 2})


@pytest.mark.slow
@pytest.mark.extra("deploy")
def test_tables_over_three_processes(hospitals: Path, tmp_path: Path) -> None:
    own = [json.dumps({"name": str(hospitals / name), "label": "readmitted"}) for name in HOSPITALS]
    asked = {**TRAINED, "data.limit": None, "model.projection": None}
    with deployed(tmp_path / "d", 3, own) as running:
        run = running.play(
            "tables", "fedavg", answer=LONGEST, **{"data.name": "patients.csv", "data.partition.name": "iid", **asked}
        )
        small = {name: value for name, value in SMALL.items() if name not in asked}
        same(run, whole(hospitals, tmp_path / "whole", **small, **asked))


def test_a_named_column_may_be_empty_at_a_client(hospitals: Path, tmp_path: Path) -> None:
    asked = {"data.features": ["age", "pressure"]}
    run = apart(hospitals, tmp_path / "apart", **asked)
    agree(run, whole(hospitals, tmp_path / "whole", **asked))
    assert [column["name"] for column in encoding(run)["columns"]] == ["age", "pressure"]


def test_class_weights_come_from_the_counts_of_all_clients(hospitals: Path, tmp_path: Path) -> None:
    asked = {"train.class_weights": "balanced"}
    run = apart(hospitals, tmp_path / "apart", **asked)
    agree(run, whole(hospitals, tmp_path / "whole", **asked))
    labels = [line.rpartition(",")[2] for n in range(3) for line in rows(n)[:30]]
    assert encoding(run)["classes"] == [labels.count("no"), labels.count("yes")]


def test_imbalanced_classes_are_noticed_by_their_counts_alone(hospitals: Path, tmp_path: Path) -> None:
    for number, name in enumerate(HOSPITALS):
        for split in ("train", "test"):
            write(hospitals / name / f"{split}.csv", [*rows(number, readmitted="no")[:20], *rows(number, readmitted="yes")[:2]])
    ranked, warnings = list[Any](), list[str]()
    for asked in ({}, {"wire.secure_aggregation": True}, {"eval.metric": "roc_auc"}):
        runs = (
            apart(hospitals, tmp_path / f"apart{len(ranked)}", warnings, **asked),
            whole(hospitals, tmp_path / f"whole{len(ranked)}", **asked),
        )
        if not asked.get("wire.secure_aggregation"):  # the clients' masks are their own
            agree(*runs)
        assert encoding(runs[0]) == encoding(runs[1])
        ranked.append([(RunFolder.open(run).config().eval.metric, encoding(run)["classes"]) for run in runs])
    assert ranked == [[("balanced_accuracy", [60, 6])] * 2] * 2 + [[("roc_auc", [])] * 2]
    assert "and each class" in warnings[0] and any("90.9% of the training labels are 'no'" in line for line in warnings)


def test_private_statistics_have_noise_that_no_seed_tells(hospitals: Path, tmp_path: Path) -> None:
    private = {"privacy.level": "sample", "privacy.target_epsilon": 8.0, "privacy.delta": 1e-3, "train.rounds": 1}
    declared = {"data.bounds": {"age": [0, 120], "pressure": [50, 250]}, "data.levels": {"sex": ["f", "m"]}}
    runs = [
        apart(hospitals, tmp_path / "apart", **private, **declared),
        whole(hospitals, tmp_path / "whole", **private, **declared),
    ]
    first, other = map(encoding, runs)
    assert first["columns"][1] == other["columns"][1] and first["columns"][0] != other["columns"][0]
    for run in runs:
        spent = json.loads((run / "summary.json").read_text())["privacy"]
        assert 0.7 < spent["statistics_epsilon"] <= 0.8 and 7.9 < spent["epsilon"] <= 8.0


def test_the_clients_file_says_which_columns_a_run_may_use(hospitals: Path, tmp_path: Path) -> None:
    sources = [Source(str(hospitals / name), label="readmitted", drop=("pressure",)) for name in HOSPITALS]
    grid = Loopback({n: ClientNode(n, source, tmp_path / "state" / f"client-{n}") for n, source in enumerate(sources)})
    asked = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED}
    play_apart(tmp_path / "apart", "fedavg", grid=grid, **asked)
    assert [column["name"] for column in encoding(tmp_path / "apart")["columns"]] == ["age", "sex"]
    with pytest.raises(FedprivError, match="the client's file lets no run use column 'pressure'"):
        play_apart(tmp_path / "other", "fedavg", grid=grid, **asked, **{"data.features": ["age", "pressure"]})


def test_sums_over_rows_that_the_server_limits_are_refused(hospitals: Path, tmp_path: Path) -> None:
    """The sums over 29 rows and over 28 would show a row."""
    with pytest.raises(FedprivError, match=r"data\.limit 29: sums over so many of a client's rows and over one less show a row"):
        apart(hospitals, tmp_path / "apart", **{"data.limit": 29})


def test_clients_that_take_their_share_of_one_table(hospitals: Path, tmp_path: Path) -> None:
    lines = [f"{line},{HOSPITALS[number]}" for number in range(3) for line in rows(number)]
    write(tmp_path / "all.csv", lines, f"{HEAD},hospital")
    by_hospital = {"data.partition.name": "by_column", "data.partition.column": "hospital", "data.label": "readmitted"}
    asked = {"data.name": str(tmp_path / "all.csv"), "data.clients": 3, **by_hospital, **TRAINED}
    source = Source(str(tmp_path / "all.csv"), share="partition", label="readmitted")
    grid = Loopback({n: ClientNode(n, source, tmp_path / "apart-clients" / f"client-{n}") for n in range(3)})
    play(tmp_path / "whole", "fedavg", **asked)
    agree(play_apart(tmp_path / "apart", "fedavg", grid=grid, **asked), tmp_path / "whole")


def costs(hospitals: Path) -> Path:
    """The hospitals with a number to predict, of which one has few different ones."""
    for number, name in enumerate(HOSPITALS):
        draw = np.random.default_rng(number)
        numbers = [round(float(draw.normal(1000, 300)), 2) if number else 800.5 + 10 * (row % 4) for row in range(40)]
        lines = [f"{line},{cost}" for line, cost in zip(rows(number), numbers, strict=True)]
        for split, part in (("train", lines[:30]), ("test", lines[30:])):
            write(hospitals / name / f"{split}.csv", part, f"{HEAD},cost")
    return hospitals


REGRESSION = {"data.task": "regression", "data.drop": ["readmitted"]}


def test_a_deployed_regression_equals_a_simulation_to_the_bit(hospitals: Path, tmp_path: Path) -> None:
    grid = nodes(costs(hospitals), tmp_path / "apart-clients", label="cost")
    asked = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED, **REGRESSION}
    play_apart(tmp_path / "apart", "fedavg", None, grid, **asked)
    whole(hospitals, tmp_path / "whole", **REGRESSION, **{"data.label": "cost"})
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*.safetensors")
    assert hashes(tmp_path / "apart", *state) == hashes(tmp_path / "whole", *state) != {}
    last = [RunFolder.open(tmp_path / run).records()[-1]["per_client"] for run in ("apart", "whole")]
    for name, values in last[0].items():  # a layer with one output rounds otherwise for other numbers of samples
        assert values == pytest.approx(last[1][name], rel=1e-5)
    config, summary = RunFolder.open(tmp_path / "apart").config(), RunFolder.open(tmp_path / "apart").summary()
    assert config.eval.metric == "rmse" and summary is not None and summary["scores"]["rmse"]["mean"] > 50
    predicted = [fedpriv.load(tmp_path / run).predict(hospitals / "west" / "test.csv") for run in ("apart", "whole")]
    assert predicted[0].equals(predicted[1]) and 0 < predicted[0]["prediction"].mean() < 2000


def test_hospitals_whose_labels_look_otherwise_are_refused(hospitals: Path, tmp_path: Path) -> None:
    grid = nodes(costs(hospitals), tmp_path / "apart-clients", label="cost")
    asked = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED}
    with pytest.raises(UsageError, match=r"at client 0.*numbers in column 'cost'.*at client 1; --set data.task=regression"):
        play_apart(tmp_path / "apart", "fedavg", None, grid, **asked)
