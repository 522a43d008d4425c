"""``fedpriv attack tokens|tag|span``: without a data set, on a data set of texts, on runs, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedpriv.attacks.lab.control import Control
from fedpriv.audit.text.samples import requests
from tests.marks import slow_but
from tests.simulation.small import play

Fedpriv = Callable[..., Result]
TEXT_RUN = {"data.clients": 12, "train.rounds": 1, "train.participation": 0.2, "model.encoder": "tiny", "train.weight_decay": 0.0}
"""Without weight decay, which moves the rows of all words: to tell them apart most must be unused, and here are few words."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of texts in a file."""
    path = tmp_path_factory.mktemp("data") / "requests.csv"
    texts, labels = requests()
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels.tolist(), strict=True)])
    return path


@pytest.fixture
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.attacks.text.controls.text_controls", lambda attack, seed: [])


def found(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def refused(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def test_tokens_of_made_up_requests(fedpriv: Fedpriv) -> None:
    """The whole way offline, controls and all: every token, and no other."""
    result = fedpriv("attack", "tokens", "--n", 4, "--json")
    said = found(result)
    (one,) = said["attackers"]
    assert (said["messages"], said["sentences"]) == (4, 32)
    assert one["recall"] == one["precision"] == 1.0 > said["baselines"]["random words"]["recall"]
    assert one["rouge_l"] is None and one["exact"] is None and one["refused"] == 0
    assert [control["name"] for control in said["controls"]] == ["positive", "negative"]
    first = one["recovered"][0]
    named = first["recovered"][0].split(" · ")
    assert all(set(text.split()) <= set(named) for text in first["true"]) and named == sorted(named)
    assert "control (negative): tokens scored" in result.stderr and "true   " in result.stderr


@pytest.mark.usefixtures("no_controls")
@pytest.mark.parametrize("attack", slow_but(["span"], ["tag", "span"]))
def test_sentences_word_for_word(fedpriv: Fedpriv, attack: str) -> None:
    said = found(fedpriv("attack", attack, "--n", 1, "--json"))
    (one,) = said["attackers"]
    assert one["exact"]["successes"] == one["labels"]["successes"] == 1 and one["rouge_l"] == 1.0
    assert one["recovered"][0]["recovered"] == one["recovered"][0]["true"]


@pytest.mark.usefixtures("no_controls")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mask-embeddings"], ("labels", "total")),
        (["--tune", "lora"], ("labels",)),
        (["--tune", "head"], ("labels",)),
    ],
    ids=" ".join,
)
def test_without_the_word_embedding_what_is_left_is_said(fedpriv: Fedpriv, options: list[str], told: tuple[str, ...]) -> None:
    result = fedpriv("attack", "tokens", "--n", 3, "--batch-size", 1, *options, "--json")
    (one,) = found(result)["attackers"]
    assert "sent" in one["inapplicable"] and "recall" not in one
    assert {name for name, rate in one["left"].items() if rate["successes"] == 3} == set(told)
    assert "still inferred correctly: 3 of 3 labels" in result.stderr


@pytest.mark.usefixtures("no_controls")
def test_a_masked_embedding_does_not_hide_sentences_from_who_looks_elsewhere(fedpriv: Fedpriv) -> None:
    said = found(fedpriv("attack", "span", "--n", 2, "--mask-embeddings", "--json"))
    assert said["attackers"][0]["exact"]["successes"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("no_controls")
def test_noise_drowns_tokens(fedpriv: Fedpriv) -> None:
    recall = [
        found(fedpriv("attack", "tokens", "--n", 4, "--noise", noise, "--json"))["attackers"][0]["recall"]
        for noise in (0, 1e-4, 1)
    ]
    assert recall[0] == 1.0 > recall[1] > recall[2]


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_a_hidden_head_calls_for_who_knows_what_it_was(fedpriv: Fedpriv) -> None:
    said = found(fedpriv("attack", "span", "--n", 1, "--mask-layers", 1, "--json"))
    naive, knowing = said["attackers"]
    assert "top.weight" in naive["inapplicable"] and naive["threat"]["top"] == "unknown"
    assert knowing["attacker"] == "span, knowing the initial head" and knowing["exact"]["successes"] == 1


@pytest.mark.usefixtures("no_controls")
def test_a_data_set_of_texts(table: Path, fedpriv: Fedpriv) -> None:
    said = found(fedpriv("attack", "tokens", "--dataset", table, "--encoder", "tiny", "--n", 2, "--batch-size", 3, "--json"))
    assert said["sentences"] == 6 and "through tiny" in said["target"]
    assert said["attackers"][0]["recall"] == 1.0
    refused(fedpriv("attack", "dlg", "--dataset", table), "holds texts", "on texts: span, tag, token-imprint, tokens")


def test_a_data_set_whose_labels_are_called_otherwise(table: Path, tmp_path: Path, fedpriv: Fedpriv) -> None:
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(table.read_text().replace("text,label", "text,topic", 1))
    arguments = ("attack", "tokens", "--dataset", renamed, "--encoder", "tiny", "--n", 2, "--batch-size", 3)
    refused(fedpriv(*arguments), "--set data.label=NAME")
    assert found(fedpriv(*arguments, "--set", "data.label=topic", "--json"))["attack"] == "tokens"
    refused(fedpriv("attack", "dlg", "--set", "data.label=topic"), "data.label names a column", "--dataset")


@pytest.mark.parametrize("attack", ["dlg", "tokens"])
def test_rows_of_a_table_are_neither_images_nor_texts(attack: str, tmp_path: Path, fedpriv: Fedpriv) -> None:
    (tmp_path / "rows.csv").write_text("age,label\n" + "".join(f"{i}.5,{i % 2}\n" for i in range(20)))
    refused(fedpriv("attack", attack, "--dataset", tmp_path / "rows.csv"), "rows.csv holds rows of a table, and attacks are on")


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "texts"
    play(folder, "fedavg", **TEXT_RUN, **{"data.name": str(table)})
    return folder


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_a_malicious_server(run: Path, fedpriv: Fedpriv) -> None:
    refused(fedpriv("attack", "token-imprint", "--run", run), "declare that with --threat malicious")
    said = found(fedpriv("attack", "token-imprint", "--threat", "malicious", "--run", run, "--json"))
    (one,) = said["attackers"]
    shown = fedpriv("attack", "token-imprint", "--threat", "malicious", "--run", run).stdout
    assert ("a failure of token-imprint is no evidence: " in shown) == (one["no_evidence"] is not None)
    assert said["threat"] == "malicious" and "are parallel to one" in said["refused"]
    assert any(name.endswith("layer.0.intermediate.dense.weight") for name in said["altered"])
    assert one["threat"]["download"] == "altered" and one["messages"] == 1


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_a_message_of_a_run(run: Path, fedpriv: Fedpriv) -> None:
    said = found(fedpriv("attack", "tokens", "--run", run, "--json"))
    (one,) = said["attackers"]
    assert said["messages"] == 1 and f"{said['sentences']} training texts" in said["target"]
    assert one["recall"] == one["precision"] == 1.0 > said["baselines"]["random words"]["recall"]
    (seek,) = found(fedpriv("attack", "span", "--run", run, "--json"))["attackers"]
    assert "a gradient below full rank" in seek["inapplicable"]
    refused(fedpriv("attack", "dlg", "--run", run), "holds texts", "on texts: span, tag, token-imprint, tokens")
    refused(fedpriv("attack", "tokens", "--run", run, "--noise", 1), "--noise is for single steps")


def test_a_control_that_fails_lets_nothing_be_said(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Control("positive", False, "tokens named 50% of the tokens", 0.1)]
    monkeypatch.setattr("fedpriv.attacks.text.controls.text_controls", lambda attack, seed: failed)
    result = fedpriv("attack", "tokens", "--n", 1)
    assert result.exit_code == 1 and "a control failed, so there can be no result" in result.stderr
    assert "random words" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tokns"], ("unknown attack 'tokns'", "did you mean 'tokens'")),
        (["tokens", "--dataset", "digits"], ("digits holds images", "on images: analytic")),
        (["tokens", "--images", "."], ("attack on texts", "--images")),
        (["tokens", "--output", "found.png"], ("--output is for attacks on images",)),
        (["tokens", "--n", 1000], ("--n 1000", "there are only 576 synthetic requests")),
        (["tokens", "--mask-layers", 1, "--tune", "head"], ("leaves nothing",)),
        (["tokens", "--mask-embeddings", "--tune", "lora"], ("no embedding is sent",)),
        (["tokens", "--noise", -1], ("--noise",)),
        (["tag", "--set", "stepz=3"], ("tag has no option 'stepz'", "did you mean 'steps'")),
        (["tag", "--set", "steps=many"], ("steps must be a whole number",)),
        (["dlg", "--encoder", "tiny"], ("--encoder is for attacks on texts",)),
        (["dlg", "--mask-embeddings"], ("--mask-embeddings is for attacks on texts",)),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_right_is_refused(fedpriv: Fedpriv, arguments: list[object], words: tuple[str, ...]) -> None:
    refused(fedpriv("attack", *arguments), *words)


def test_attacks_on_texts_are_listed(fedpriv: Fedpriv) -> None:
    rows = {row["name"]: row for row in found(fedpriv("attacks", "--json"))["attacks"]}
    assert {name for name, row in rows.items() if row["on"] == "texts"} >= {"tokens", "tag", "span"}
    assert rows["dlg"]["on"] == "images"
