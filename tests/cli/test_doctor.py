"""``fedpriv doctor``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from fedpriv.cli import doctor
from fedpriv.errors import extra
from tests.cli.test_attack import Fedpriv, last_line


def test_it_shows_versions_devices_and_folders(fedpriv: Fedpriv, empty_folder: Path) -> None:
    found = {line["what"]: line for line in last_line(fedpriv("doctor", "--json"))["lines"]}
    assert found["fedpriv"]["value"].startswith(version("fedpriv")) and found["torch"]["value"] == version("torch")
    assert found["devices"]["value"].startswith("cpu") and str(empty_folder) in found["this folder"]["value"]
    assert found["tracking"]["value"].startswith("sqlite:///")
    assert all(found[f"cache of {what}"]["missing"] is None for what in ("images", "controls"))
    assert {f"extra {name}" for name in ("minilm", "deploy", "cluster", "tensorboard")} <= found.keys()


def test_an_extra_that_is_not_there_names_its_package_and_how_to_get_it(
    fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_ray(package: str) -> str:
        if package == "ray":
            raise PackageNotFoundError(package)
        return {"flwr": "1.41.0", "httpx": "0.28.2", "prometheus-client": "0.22.0"}.get(package) or version(package)

    monkeypatch.setattr(doctor, "version", without_ray)
    found = last_line(fedpriv("doctor", "--json"))
    lines = {line["what"]: line for line in found["lines"]}
    assert lines["extra cluster"] == {
        "what": "extra cluster", "value": "not installed: ray", "missing": extra("cluster")
    }  # fmt: skip
    assert (
        lines["extra deploy"]["missing"] is None
        and lines["extra deploy"]["value"] == "flwr 1.41.0, httpx 0.28.2, prometheus-client 0.22.0"
    )
    assert "extra cluster" in found["missing"] and "extra deploy" not in found["missing"]
    monkeypatch.setattr(doctor, "version", lambda package: "9.9.0" if package == "flwr" else without_ray(package))
    lines = {line["what"]: line for line in last_line(fedpriv("doctor", "--json"))["lines"]}
    assert lines["extra deploy"]["missing"].startswith("tested with flwr")


def test_the_data_folder(fedpriv: Fedpriv, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> dict[str, str]:
        return next(line for line in last_line(fedpriv("doctor", "--json"))["lines"] if line["what"] == "data folder")

    assert said()["value"].startswith("none")
    monkeypatch.setenv("FEDPRIV_DATA", str(empty_folder / "gone"))
    assert said()["missing"] == "FEDPRIV_DATA names no folder"
    (empty_folder / "cifar10").mkdir()
    monkeypatch.setenv("FEDPRIV_DATA", str(empty_folder))
    assert said()["value"] == f"{empty_folder}: cifar10"


def test_a_password_is_not_shown(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:s3cret@example.org")
    result = fedpriv("doctor", "--json")
    assert result.exit_code == 0 and "example.org" in result.output and "s3cret" not in result.output
