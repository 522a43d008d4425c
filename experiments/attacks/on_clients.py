"""Measure attacks on the messages of a run: its clients' answers to an honest or an altered download."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedpriv
from fedpriv.attacks.attack import ImageAttack, image_attack
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.lab.attempts import attempt
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.scores import RECOVERED
from fedpriv.audit.images import target
from fedpriv.audit.record.run import RunRecord

RUN: Mapping[str, Any] = {"data.name": "digits", "train.rounds": 1, "eval.last": 1, "tracking.uri": "none"}
"""Settings besides those of the quick start. The messages of three clients are kept."""


def on_clients(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """Train one round, and mount each of the config's attacks on the answers of all clients whose messages are kept.

    An attack ``{"attack": name, "options": {...}}`` that alters the download is mounted once per seed in ``draws``. With
    ``"together": True`` all clients get the same download, and the server sees only the mean of their changes, weighted by their
    numbers of samples.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.train(run_dir=Path(folder) / "run", **RUN, **config["run"])
        record = RunRecord(run.path)
        honest = Answers.to_honest(record)
        copies = [int((case.guesses()["nearest public"] < RECOVERED).sum()) for case in honest.targets]
        return [_cell(record, honest, copies, case, config["draws"]) for case in config["attacks"]]


def _cell(
    record: RunRecord, honest: Answers, copies: Sequence[int], config: Mapping[str, Any], draws: Sequence[int]
) -> dict[str, Any]:
    """The results of an attack on all answers; ``copies`` counts each client's images that a public image matches."""
    attack, began = image_attack(config["attack"])(**config["options"]), time.process_time()
    answers = [honest]
    if attack.is_malicious():
        sent = OneDownload(attack) if config.get("together") else attack
        answers = [Answers.to_altered(record, sent, draw) for draw in draws]
    if config.get("together"):
        answers, copies = [answer.together() for answer in answers], [sum(copies)]
    tried = [outcome for answer in answers for outcome in answer.attacked(attack, copies)]
    return {
        **config,
        "n": sum(answer["n"] for answer in tried),
        "recovered": sum(answer["recovered"] for answer in tried),
        "attacks": tried,
        "cpu_seconds": round(time.process_time() - began, 2),
    }


class OneDownload(ImageAttack):
    """A malicious attack that sends all clients the download that it altered for the first one."""

    def __init__(self, attack: ImageAttack) -> None:
        self.attack, self.name, self.altered = attack, attack.name, dict[int, dict[str, Tensor]]()

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        if seed not in self.altered:
            self.altered[seed] = self.attack.alter(observation, public, seed)
        return self.altered[seed]


@dataclass(frozen=True)
class Answers:
    """The clients' answers to one download in the first round.

    Attributes:
        targets: the answer of each client, with the true images.
        refusals: the pattern that each client's check reports; ``None`` if it accepts the download.
        draw: seed of the attack.
    """

    targets: list[target.Target]
    refusals: list[str | None]
    threat: ThreatModel
    draw: int = 0

    @classmethod
    def to_honest(cls, record: RunRecord) -> Answers:
        targets = [target.message(record, *which) for which in record.messages()]
        return cls(targets, [None] * len(targets), ThreatModel())

    @classmethod
    def to_altered(cls, record: RunRecord, attack: ImageAttack, draw: int) -> Answers:
        answers = [target.altered(record, *which, attack, draw) for which in record.messages()]
        refusals = [None if played.refusal is None else _pattern(played.refusal) for _, played in answers]
        return cls([answer for answer, _ in answers], refusals, ThreatModel(download="altered", public=True), draw)

    def together(self) -> Answers:
        """The mean of the changes, as the message of one client that holds all of the samples."""
        observed = [message for seen in self.targets for message in seen.observe(self.threat)]
        counts = [message.num_examples or 0 for message in observed]
        shared = {
            name: torch.stack([message.shared[name] * n for message, n in zip(observed, counts, strict=True)]).sum(0)
            / sum(counts)
            for name in observed[0].shared
        }
        mean = replace(observed[0], shared=shared, num_examples=sum(counts))
        images, labels = (torch.cat([getattr(message, what) for message in self.targets]) for what in ("images", "labels"))
        whole = replace(self.targets[0], images=images, labels=labels, observe=lambda threat: [mean])
        return replace(self, targets=[whole], refusals=self.refusals[:1])

    def attacked(self, attack: ImageAttack, copies: Sequence[int]) -> list[dict[str, Any]]:
        """For each answer: the number of images, of recovered ones, and of those that a public image matches."""
        results = []
        for seen, refusal, copied in zip(self.targets, self.refusals, copies, strict=True):
            outcome = attempt(Attacker(attack, self.threat), seen.observe(self.threat), seen.images, seen.labels, self.draw)
            recovered = 0 if outcome.scores is None else outcome.scores.recovered[RECOVERED].successes
            row = {"n": len(seen.images), "recovered": recovered, "copies": copied, "refused": refusal}
            results.append(row if outcome.scores is not None else row | {"inapplicable": str(outcome.inapplicable)})
        return results


def _pattern(refusal: str) -> str:
    """The pattern in a client's refusal: rows or columns."""
    match = re.search(r"its (rows|columns)", refusal)
    return refusal if match is None else match[1]
