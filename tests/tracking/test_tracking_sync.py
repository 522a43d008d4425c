"""What ``sync`` sends to MLflow, and that it sends it once."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import append, line, make_run, set_status

from fedpriv.attacks.scoring.operating_points import Area
from fedpriv.audit.answer import concluded
from fedpriv.audit.judge.measures import metrics
from fedpriv.audit.results.outcome import Interval
from fedpriv.audit.results.stored import to_json
from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import TrackingError, default_uri, sync
from fedpriv.tracking.names import defence, params
from fedpriv.tracking.store import create_store
from tests.audit.sample_findings import findings
from tests.simulation.processes import CONTEXT


def client(runs_dir: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=default_uri(runs_dir))


def runs(runs_dir: Path) -> list[Any]:
    store = client(runs_dir)
    return list(store.search_runs([store.get_experiment_by_name("fedpriv").experiment_id]))


def rows(runs_dir: Path) -> int:
    """Number of metric points in the store, whatever their key."""
    with sqlite3.connect(runs_dir / "mlflow.db") as database:
        return int(database.execute("select count(*) from metrics").fetchone()[0])


def cursor(folder: Path, **change: Any) -> dict[str, Any]:
    path = folder / "tracking.json"
    values = json.loads(path.read_text()) | change
    values.pop("sha256", None)  # as an earlier version wrote it
    path.write_text(json.dumps(values))
    return dict(values)


def table_of(runs_dir: Path, run: str | None) -> list[list[float]]:
    """The rows of the table of clients, in the form of MLflow's ``log_table``."""
    table = json.loads(Path(client(runs_dir).download_artifacts(run, "clients.json")).read_text())
    assert table.keys() == {"columns", "data"} and table["columns"] == ["client", "accuracy"]
    return list(table["data"])


def test_run_names_have_options_and_defences(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    set_status(folder, "finished", changed_options={"mu": 5, "negative": "R2"})
    name = client(runs_dir).get_run(sync(folder).mlflow_run_id).info.run_name
    assert name == "mpfedcon:mu=5,negative=R2 · digits · s0 · clip:norm=1.0"


def test_what_a_person_says_of_a_run_is_in_its_note(runs_dir: Path) -> None:
    folder = make_run(runs_dir, about={"title": "Readmission", "owner": "A. Owner", "data": None})
    note = client(runs_dir).get_run(sync(folder).mlflow_run_id).data.tags["mlflow.note.content"]
    assert note.startswith("Readmission\n\nOwner: A. Owner\n\nmpfedcon on digits")


def test_a_finished_run_arrives_whole(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=20, clients=12)
    report = sync(folder)
    store = client(runs_dir)
    run = store.get_run(report.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (1_700_000_000_000, 1_700_000_040_000)
    assert run.info.run_name == "mpfedcon · digits · s0 · clip:norm=1.0"
    assert "fedpriv train --config config.yaml" in run.data.tags["mlflow.note.content"] and run.data.tags["mlflow.user"]
    assert run.data.params["train.lr"] == "0.01"
    assert run.data.params["method.mu"] == "5" and run.data.params["data.clients"] == "12"
    assert run.data.params["defence"] == "clip:norm=1.0"
    assert "data.partition.alpha" not in run.data.params, "it has its default"
    assert not [key for key in run.data.params if key.startswith(("tracking", "run_dir", "wire"))]
    assert run.data.tags["mlflow.source.git.commit"] == "0123abc"
    assert run.data.tags["fedpriv.partition_hash"] == "c0ffee"
    assert run.data.tags["fedpriv.version.torch"] == "2.9.0"
    assert run.data.tags["fedpriv.run_dir"] == str(folder.resolve())
    assert [item.dataset.name for item in run.inputs.dataset_inputs] == ["digits"]
    history = store.get_metric_history(report.mlflow_run_id, "accuracy/mean")
    wanted = [line(number, clients=12) for number in (0, 5, 10, 15, 20)]
    assert [(p.step, p.timestamp, p.value) for p in history] == [
        (r["round"], r["time_ms"], r["metrics"]["accuracy"]) for r in wanted
    ]
    assert len(store.get_metric_history(report.mlflow_run_id, "loss/train")) == 20
    assert len(store.get_metric_history(report.mlflow_run_id, "loss/test")) == 5 and "test_loss" not in run.data.metrics
    last = wanted[-1]["per_client"]["accuracy"]
    assert table_of(runs_dir, report.mlflow_run_id) == [[i, value] for i, value in enumerate(last)]
    assert '"path": "clients.json", "type": "table"' in run.data.tags["mlflow.loggedArtifacts"]
    assert not [name for name in run.data.metrics if "per_client" in name]
    assert run.data.metrics["accuracy/worst_tenth"] == min(last)
    assert run.data.metrics["accuracy/best"] == max(last)
    assert run.data.metrics["final/bytes_up"] == 1_600_000
    assert run.data.metrics["final/protocols.personal.accuracy"] == 0.91
    assert "final/rounds" not in run.data.metrics, "bookkeeping is no chart"
    files = {item.path for item in store.list_artifacts(report.mlflow_run_id)}
    assert files == {
        "clients.json",
        "config.yaml",
        "run.json",
        "summary.json",
        "metrics.jsonl",
        "partition.safetensors",
        "plots",
        "weights",
    }
    assert [item.path for item in store.list_artifacts(report.mlflow_run_id, "plots")] == ["plots/learning_curve.png"]
    assert any((runs_dir / "mlartifacts").rglob("global.safetensors"))


def test_damage_of_the_cursor_is_noticed(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    sync(folder)
    path = folder / "tracking.json"
    path.write_text(path.read_text().replace('"last_round": ', '"last_round": 1'))
    with pytest.raises(Damaged, match=r"tracking.json is damaged: its checksum does not match"):
        sync(folder)


def test_a_second_sync_sends_nothing(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    sync(folder)
    before = rows(runs_dir)
    again = sync(folder)
    assert (again.params, again.points, again.artifacts) == (0, 0, 0)
    assert rows(runs_dir) == before


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf")])
def test_a_lost_acknowledgement_doubles_nothing(runs_dir: Path, loss: float) -> None:
    folder = make_run(runs_dir, status="running")
    record = line(21)
    record["metrics"]["train_loss"] = loss
    append(folder, record)
    first = sync(folder)
    before = rows(runs_dir)
    cursor(folder, lines_sent=3, last_round=3, params_sent=False, artifacts_sent={}, status_sent=None)
    append(folder, line(22))
    again = sync(folder)
    assert again.mlflow_run_id == first.mlflow_run_id
    assert again.points > 20  # sent again, and
    assert rows(runs_dir) == before + 6  # only the new round is new


def test_a_lost_cursor_finds_the_run_again(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    first = sync(folder)
    before = rows(runs_dir)
    (folder / "tracking.json").unlink()
    assert sync(folder).mlflow_run_id == first.mlflow_run_id
    assert len(runs(runs_dir)) == 1
    assert rows(runs_dir) == before


def test_a_run_made_anew_under_the_same_name_is_another(runs_dir: Path) -> None:
    sync(make_run(runs_dir, "same"))
    shutil.rmtree(runs_dir / "same")
    folder = make_run(runs_dir, "same")
    set_status(folder, "finished", created_ms=1_700_000_999_000)
    sync(folder)
    assert len(runs(runs_dir)) == 2


def test_a_live_run_grows_and_a_torn_line_waits(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=3, status="running")
    report = sync(folder)
    assert runs(runs_dir)[0].info.status == "RUNNING"
    assert report.artifacts == 0
    append(folder, line(4), torn=True)
    assert sync(folder).points == 0
    text = json.dumps(line(4)) + "\n"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text[len(text) // 2 :])
    assert sync(folder).points == 6
    assert [p.step for p in client(runs_dir).get_metric_history(report.mlflow_run_id, "bytes/up")] == [0, 1, 2, 3, 4]


def test_a_run_whose_process_is_gone_was_killed(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=4, status="running")
    with RunFolder(folder).alone():
        assert sync(folder).status == "RUNNING"
    assert sync(folder).status == "KILLED"
    (folder / ".run.lock").write_text("process 1 on another-machine")
    assert sync(folder).status == "KILLED", "what was sent stands where it is not known"
    assert runs(runs_dir)[0].info.status == "KILLED"


def test_an_interrupted_run_is_continued_as_the_same(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=4, status="interrupted")
    first = sync(folder)
    assert runs(runs_dir)[0].info.status == "KILLED"
    set_status(folder, "running")
    append(folder, line(4, start_ms=1_800_000_000_000))  # the round that the checkpoint did not have is run again
    append(folder, line(5, start_ms=1_800_000_000_000))
    with RunFolder(folder).alone():
        sync(folder)
    (run,) = runs(runs_dir)
    assert (run.info.run_id, run.info.status) == (first.mlflow_run_id, "RUNNING")
    assert [p.step for p in client(runs_dir).get_metric_history(run.info.run_id, "bytes/up")] == [0, 1, 2, 3, 4, 5]
    set_status(folder, "failed")
    sync(folder)
    assert runs(runs_dir)[0].info.status == "FAILED"


@pytest.mark.slow
def test_a_resumed_run_with_another_config_keeps_its_params(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    sync(folder)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("lr: 0.01", "lr: 0.5") + "added: 1\n")
    (folder / "tracking.json").unlink()
    sync(folder)
    params = runs(runs_dir)[0].data.params
    assert (params["train.lr"], params["added"]) == ("0.01", "1")


@pytest.mark.parametrize(
    ("wire", "privacy", "text"),
    [
        ({}, {}, "none"),
        (
            {"transforms": [{"name": "mask", "last": 2}, {"name": "cast", "dtype": "float16"}]},
            {},
            "mask:last=2+cast:dtype=float16",
        ),
        ({"secure_aggregation": True}, {"level": "client", "noise": 1.0}, "secure-aggregation+dp-client:noise=1.0"),
        ({}, {"level": "sample", "target_epsilon": 8}, "dp-sample:target_epsilon=8"),
    ],
)
def test_all_defences_are_one_parameter(wire: dict[str, Any], privacy: dict[str, Any], text: str) -> None:
    assert defence({"wire": wire, "privacy": privacy}) == text == params({"wire": wire, "privacy": privacy})["defence"]


def test_a_second_report_does_not_double_the_table_of_clients(runs_dir: Path) -> None:
    folder = make_run(runs_dir, clients=3)
    report = sync(folder)
    cursor(folder, artifacts_sent={})
    sync(folder)
    assert len(table_of(runs_dir, report.mlflow_run_id)) == 3


@pytest.mark.slow
def test_a_store_thrown_away_is_filled_again(runs_dir: Path, empty_store: Path) -> None:
    folder = make_run(runs_dir)
    sync(folder)
    shutil.copy(empty_store, runs_dir / "other.db")
    report = sync(folder, f"sqlite:///{runs_dir / 'other.db'}")  # a second store gets everything, too
    assert report.params and report.artifacts == 7
    assert (runs_dir / "mlartifacts").is_dir()
    cursor(folder, mlflow_run_id="0" * 32)
    assert sync(folder, report.uri).points == report.points
    assert len(client(runs_dir).search_runs(["1"])) == 1


def test_a_run_deleted_in_mlflow_stays_deleted(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    client(runs_dir).delete_run(sync(folder).mlflow_run_id)
    with pytest.raises(TrackingError, match="deleted in MLflow"):
        sync(folder)


def test_no_tracking_and_no_run(runs_dir: Path, tmp_path: Path) -> None:
    folder = make_run(runs_dir, uri="none")
    assert sync(folder).uri is None
    assert not (folder / "tracking.json").exists()
    with pytest.raises(UsageError, match="not a run folder"):
        sync(tmp_path)


def test_a_password_is_not_shown(runs_dir: Path) -> None:
    folder = make_run(runs_dir, uri="http://me:secret@127.0.0.1:9/x")
    with pytest.raises(TrackingError, match="does not answer") as caught:
        sync(folder, "http://me:secret@127.0.0.1:9/x")
    assert "http://me:***@127.0.0.1:9/x" in str(caught.value)
    assert "secret" not in (folder / "tracking.json").read_text()


def test_default_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert default_uri(tmp_path) == "http://server:5000"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"


@pytest.mark.slow
def test_a_store_that_two_processes_want_at_the_same_moment(tmp_path: Path) -> None:
    import mlflow  # noqa: F401 (before: it takes seconds)

    path = tmp_path / "mlflow.db"
    other = CONTEXT.Process(target=create_store, args=(path,))
    other.start()
    create_store(path)
    other.join(600)
    assert other.exitcode == 0
    assert path.exists() and not list(tmp_path.glob(".mlflow-*")), "no drafts are left"


@pytest.mark.slow
def test_two_runs_at_once_on_a_fresh_store(runs_dir: Path) -> None:
    folders = [make_run(runs_dir, name, rounds=2) for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        assert all(report.status == "FINISHED" for report in pool.map(sync, folders))
    assert len(runs(runs_dir)) == 4


@pytest.mark.slow
def test_one_run_sent_twice_at_once_is_one(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    with ThreadPoolExecutor(4) as pool:
        assert len({report.mlflow_run_id for report in pool.map(sync, [folder] * 4)}) == 1
    assert len(runs(runs_dir)) == 1


@pytest.mark.parametrize("refusals", [1, 100])
def test_a_dataset_that_another_run_inserts_at_the_same_time(
    refusals: int, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses the slower of two runs that insert the same dataset; one lasting refusal is still an error."""
    from mlflow import MlflowClient
    from mlflow.exceptions import BAD_REQUEST, MlflowException

    genuine, calls = MlflowClient.log_inputs, []

    def collides(self: MlflowClient, *inputs: Any) -> None:
        calls.append(inputs)
        if len(calls) <= refusals:
            raise MlflowException("(sqlite3.IntegrityError) UNIQUE constraint failed: datasets.digest", error_code=BAD_REQUEST)
        genuine(self, *inputs)

    monkeypatch.setattr(MlflowClient, "log_inputs", collides)
    folder = make_run(runs_dir)
    if refusals > 1:
        with pytest.raises(TrackingError, match="UNIQUE constraint"):
            sync(folder)
    else:
        sync(folder)
        assert [dataset.dataset.digest for dataset in runs(runs_dir)[0].inputs.dataset_inputs] == ["c0ffee"]
    assert len(calls) == min(refusals + 1, 4)


@pytest.mark.parametrize("place", ["{}/mlflow.db", "mlflow.db"])
def test_a_run_of_an_mlflow_project_hangs_below_it(runs_dir: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(runs_dir)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place.format(runs_dir)}")
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    sync(make_run(runs_dir, "below"))
    assert runs(runs_dir)[0].data.tags["mlflow.parentRunId"] == "f" * 32


def moved(runs_dir: Path) -> tuple[Path, Path]:
    """The folder of runs in its new place, and the run in it, for another process: MLflow keeps places in this one."""
    from mlflow.tracking._tracking_service import utils

    utils._artifact_repos_cache.clear()
    place = runs_dir.rename(runs_dir.with_name("moved runs"))
    return place, next(path.parent for path in place.glob("*/run.json"))


def places(runs_dir: Path) -> set[str]:
    """Whatever the store names for artifacts of the experiment, up to ``mlartifacts``."""
    names = [("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location")]
    with sqlite3.connect(runs_dir / "mlflow.db") as database:
        places = [row[0] for table, column in names for row in database.execute(f"SELECT {column} FROM {table}")]
    return {place.partition("/mlartifacts")[0] for place in places if "/mlartifacts" in place}


def test_artifacts_move_with_the_folder_of_runs(runs_dir: Path) -> None:
    report = sync(make_run(runs_dir, rounds=2))
    store = client(runs_dir)
    logged = store.create_logged_model(runs(runs_dir)[0].info.experiment_id, "model", report.mlflow_run_id)
    place, folder = moved(runs_dir)
    (folder / "plots" / "later.png").write_bytes(b"png")
    again = sync(folder, f"sqlite:///{place / 'mlflow.db'}")
    assert (again.mlflow_run_id, runs_dir.exists()) == (report.mlflow_run_id, False)
    assert places(place) == {place.as_uri()}
    store = client(place)
    assert {item.path for item in store.list_artifacts(again.mlflow_run_id, "plots")} == {
        "plots/learning_curve.png",
        "plots/later.png",
    }
    assert store.get_logged_model(logged.model_id).artifact_location.startswith(place.as_uri())
    sync(make_run(place, "new", rounds=2), again.uri)
    assert not runs_dir.exists() and places(place) == {place.as_uri()}


def test_missing_artifacts_of_a_moved_store_are_named(runs_dir: Path) -> None:
    sync(make_run(runs_dir, rounds=2))
    place, folder = moved(runs_dir)
    (place / "mlartifacts").rename(place / "forgotten")
    with pytest.raises(TrackingError, match=r"names .*/my runs/mlartifacts .* move it to .*/moved runs/mlartifacts"):
        sync(folder, f"sqlite:///{place / 'mlflow.db'}")
    assert places(place) == {runs_dir.as_uri()}
    (place / "forgotten").rename(place / "mlartifacts")
    sync(folder, f"sqlite:///{place / 'mlflow.db'}")
    assert places(place) == {place.as_uri()}


def test_artifacts_in_an_existing_folder_stay_there(runs_dir: Path) -> None:
    """Of a copy, and of a store that a link leads to."""
    sync(make_run(runs_dir, rounds=2))
    (runs_dir.parent / "link").symlink_to(runs_dir)
    copied = Path(shutil.copytree(runs_dir, runs_dir.with_name("copied")))
    for place in (runs_dir.parent / "link", copied):
        folder = next(path.parent for path in place.glob("*/run.json"))
        sync(folder, f"sqlite:///{place / 'mlflow.db'}")
        assert places(place) == {runs_dir.as_uri()}


def test_a_probe_of_a_finished_run_arrives_later(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=2)
    sync(folder)
    (folder / "probe").mkdir()
    row = {"dataset": "digits", "fraction": 0.1, "features": "pooled", "accuracy": 0.75}
    row |= {"accuracy_as_is": None, "accuracy_logistic": None}
    (folder / "probe" / "digits-0.1.json").write_text(json.dumps(row))
    other = {**row, "features": "prepool", "accuracy_as_is": 0.5, "accuracy_logistic": 0.8}
    (folder / "probe" / "digits-0.1-prepool.json").write_text(json.dumps(other))
    report = sync(folder)
    metrics = client(runs_dir).get_run(report.mlflow_run_id).data.metrics
    probes = {name: value for name, value in metrics.items() if name.startswith("probe")}
    prepool = {"probe/digits 0.1 prepool": 0.75, "probe_as_is/digits 0.1 prepool": 0.5, "probe_logistic/digits 0.1 prepool": 0.8}
    assert probes == {"probe/digits 0.1": 0.75, **prepool}
    assert sync(folder).points == 0


def test_a_later_audit_clears_metrics_that_it_lacks(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=2)
    run = replace(findings().runs[0], run_id=json.loads((folder / "run.json").read_text())["run_id"])

    def audited(**changes: Any) -> dict[str, float]:
        (folder / "audit").mkdir(exist_ok=True)
        report = concluded(replace(run, **changes))
        (folder / "audit" / "audit.json").write_text(json.dumps(to_json(replace(findings(), runs=(report,)))))
        metrics = client(runs_dir).get_run(sync(folder).mlflow_run_id).data.metrics
        return {name: value for name, value in metrics.items() if name.startswith("audit/")}

    first = audited()
    assert first["audit/membership_auc"] == 0.71
    later = audited(membership=(), shadow_labels=None)
    gone = {"audit/membership_auc", "audit/labels_exact_by_shadows"}
    assert later.keys() == first.keys() and {name for name, value in later.items() if math.isnan(value)} == gone
    assert {name: later[name] for name in later.keys() - gone} == {name: first[name] for name in first.keys() - gone}
    experiment = client(runs_dir).get_experiment_by_name("fedpriv").experiment_id
    assert not client(runs_dir).search_runs([experiment], "metrics.`audit/membership_auc` <= 0.6"), "as it is not known"
    assert audited() == first
    assert sync(folder).points == 0


def test_runs_are_found_by_the_answer_of_their_last_audit(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=2)
    run_id = json.loads((folder / "run.json").read_text())["run_id"]
    (folder / "audit").mkdir()
    answers = {"Samples were recovered": {}, "Members were identified": {"images": (), "texts": (), "rows": (), "centers": ()}}
    for words, changes in answers.items():
        report = concluded(replace(findings().runs[0], run_id=run_id, **changes))
        (folder / "audit" / "audit.json").write_text(json.dumps(to_json(replace(findings(), runs=(report,)))))
        experiment = client(runs_dir).get_run(sync(folder).mlflow_run_id).info.experiment_id
        found = {words: len(client(runs_dir).search_runs([experiment], f"tags.`fedpriv.audit` = '{words}'")) for words in answers}
        assert found == {other: other == words for other in answers}


def test_the_membership_auc_in_mlflow_is_that_of_conditions() -> None:
    run = findings().runs[0]
    first, *others = run.membership
    assert first.points is not None
    turned = replace(first, points=replace(first.points, auc=Area(0.2, 0.16, 0.25)), together=Interval(0.14, 0.27, 3))
    run = replace(run, membership=(turned, *others))
    assert metrics(run)["membership_auc"] == pytest.approx(0.8)
