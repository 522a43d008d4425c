"""An interrupted audit continues: what it has finished is not computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.lab.nets import observe, perceptron
from fedpriv.attacks.lab.trial import Attacker, mount
from fedpriv.audit import finished, report
from fedpriv.audit.finished import UNFINISHED
from fedpriv.audit.results.stored import to_json
from fedpriv.audit.run_audit import AuditOptions
from tests.simulation.small import play

pytestmark = pytest.mark.usefixtures("hardly_any_steps")

OPTIONS = AuditOptions(messages=1, label_shadows=4, membership_shadows=4, singles=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    play(tmp_path / "run", "mpfedcon", **{"data.limit": 200, "train.participation": 0.1})
    return tmp_path / "run"


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The attacks that were mounted, all of which are worth keeping."""
    names = list[str]()

    def noted(attacker: Attacker, observed: Sequence[Observation], seed: int) -> Reconstruction:
        names.append(attacker.name)
        return mount(attacker, observed, seed)

    monkeypatch.setattr(finished, "mount", noted)
    monkeypatch.setattr(finished, "WORTH_KEEPING", 0.0)
    return names


def broken_off(run: Path, step: str) -> list[str]:
    """Audit until a step; the lines of progress."""
    lines = list[str]()

    def say(text: str) -> None:
        lines.append(text)
        if step in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.audit([run], OPTIONS, "test", 1, say)
    return lines


def whole(run: Path) -> tuple[dict[str, Any], list[str]]:
    lines = list[str]()
    audited = report.audit([run], OPTIONS, "test", 1, lines.append)
    report.write(audited, run / "audit")
    return to_json(audited.audit), lines


def timeless(leaf: Any) -> Any:
    if isinstance(leaf, dict):
        return {key: timeless(value) for key, value in leaf.items() if "second" not in key and key != "created"}
    return [timeless(item) for item in leaf] if isinstance(leaf, list) else leaf


@pytest.mark.slow
def test_finished_attacks_are_not_mounted_again(run: Path, mounted: list[str]) -> None:
    broken_off(run, "class centres of round")
    first = list(mounted)
    assert first and (run / "audit" / UNFINISHED).is_dir()
    mounted.clear()
    continued, lines = whole(run)
    assert not mounted, "all attacks on images were finished"
    assert any("continuing" in line for line in lines)
    assert not (run / "audit" / UNFINISHED).exists()
    again, lines = whole(run)
    assert sorted(mounted) == sorted(first) and not any("continuing" in line for line in lines)
    assert timeless(continued) == timeless(again)


def test_names_of_results_hold_no_addresses_in_memory() -> None:
    """Another process would not find what this one has finished."""
    seen = observe(perceptron(0, height=8, width=8), torch.rand(1, 3, 8, 8), torch.tensor([1]))
    named = finished._facts(replace(seen, zero_gradient_change=lambda start: start, penalty=lambda start: start))
    assert " at 0x" not in named and named == finished._facts(seen)


@pytest.mark.slow
def test_results_on_clients_are_kept(run: Path, mounted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.audit.run_audit.texts.known_members", full)
        with pytest.raises(KeyboardInterrupt):
            report.audit([run], OPTIONS, "test", 1, lambda text: None)
    continued, lines = whole(run)
    assert not any("membership" in line or "labels" in line for line in lines)
    assert continued["runs"][0]["membership"]


def test_results_of_other_messages_are_not_read(tmp_path: Path, mounted: list[str]) -> None:
    from fedpriv.attacks.lab.attempts import attackers, observations
    from fedpriv.attacks.lab.images import default_images

    images, labels = default_images(2, 0)
    (attacker,) = attackers("head-free", 0, {"steps": 1, "restarts": 0})
    some, others = (observations(images[i : i + 1], labels[i : i + 1], attacker.threat, 0, 10, 0) for i in range(2))
    kept = finished.Finished(tmp_path / "kept")
    first = kept.mount(attacker, some, 0)
    assert kept.mount(attacker, some, 0).raw.equal(first.raw) and len(mounted) == 1
    assert not kept.mount(attacker, others, 0).raw.equal(first.raw) and len(mounted) == 2
    kept.mount(attacker, some, 1)
    assert len(mounted) == 3, "another seed"
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert kept.mount(attacker, some, 0).raw.equal(first.raw) and len(mounted) == 4, "a damaged one is made again"
