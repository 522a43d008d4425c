"""``fedpriv models``."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fedpriv.cli import main
from fedpriv.models import ROLES, model_names


def test_json_lists_every_net() -> None:
    result = CliRunner().invoke(main, ["models", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout.splitlines()[-1])["models"]}
    assert sorted(rows) == model_names()
    cnn10 = rows["cnn10"]
    assert cnn10["input_shape"] == [3, 32, 32] and cnn10["classes"] == 10
    assert cnn10["parameters"] == {"encoder": 307_192, "projector": 12_480, "predictor": 0, "head": 1_290}
    assert cnn10["bytes"]["encoder"] == 1_228_768
    assert all(set(row["bytes"]) == set(ROLES) for row in rows.values())


def test_table_of_models_shows_full_names() -> None:
    result = CliRunner().invoke(main, ["models", "--projection", "none"], env={"COLUMNS": "80"})
    as_in_a_config = CliRunner().invoke(main, ["models", "--projection", "null"], env={"COLUMNS": "80"})
    assert as_in_a_config.stdout == result.stdout
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in model_names())
    assert "projector" not in result.stdout and "307,192" in result.stdout


def test_projection_must_be_a_width_or_none() -> None:
    result = CliRunner().invoke(main, ["models", "--projection", "0"])
    assert result.exit_code == 2 and "positive whole number" in result.output


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(main, ["models", "--help"])
    assert "Example: fedpriv models --json" in result.output
