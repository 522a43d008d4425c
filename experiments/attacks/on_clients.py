"""The measure of the table whose messages are those of a run: its clients' answers to an honest, or to an altered, download."""

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
"""All else is as in the quick start, unless the config says otherwise. The messages of three clients are kept."""


def on_clients(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """Train one round, and mount each of the config's attacks on the answer of every client whose messages are kept.

    An attack ``{"attack": name, "options": {...}}`` that alters the download is mounted once for each of the config's ``draws``,
    the seeds of what it draws. With ``"together": True`` all clients get the same download, and the server has the mean of their
    changes alone, weighted by their numbers of samples.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.train(run_dir=Path(folder) / "run", **RUN, **config["run"])
        evidence = RunRecord(run.path)
        honest = Answers.to_honest(evidence)
        copies = [int((one.guesses()["nearest public"] < RECOVERED).sum()) for one in honest.targets]
        return [_cell(evidence, honest, copies, one, config["draws"]) for one in config["attacks"]]


def _cell(
    evidence: RunRecord, honest: Answers, copies: Sequence[int], config: Mapping[str, Any], draws: Sequence[int]
) -> dict[str, Any]:
    """An attack on all answers; for ``copies`` of each client's images a copy of the nearest public image would count."""
    attack, began = image_attack(config["attack"])(**config["options"]), time.process_time()
    answers = [honest]
    if attack.is_malicious():
        sent = OneDownload(attack) if config.get("together") else attack
        answers = [Answers.to_altered(evidence, sent, draw) for draw in draws]
    if config.get("together"):
        answers, copies = [one.together() for one in answers], [sum(copies)]
    tried = [found for one in answers for found in one.attacked(attack, copies)]
    return {
        **config,
        "n": sum(one["n"] for one in tried),
        "recovered": sum(one["recovered"] for one in tried),
        "attacks": tried,
        "cpu_seconds": round(time.process_time() - began, 2),
    }


class OneDownload(ImageAttack):
    """A malicious attack that alters a draw's download once, for the first client; the others get the same."""

    def __init__(self, attack: ImageAttack) -> None:
        self.attack, self.name, self.made = attack, attack.name, dict[int, dict[str, Tensor]]()

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        if seed not in self.made:
            self.made[seed] = self.attack.alter(observation, public, seed)
        return self.made[seed]


@dataclass(frozen=True)
class Answers:
    """What the clients of the first round answer to one download.

    Attributes:
        targets: the answer of each client, with the true images.
        refusals: the pattern that each client's check names; ``None``: it takes the download.
        draw: seed of what the attack draws.
    """

    targets: list[target.Target]
    refusals: list[str | None]
    threat: ThreatModel
    draw: int = 0

    @classmethod
    def to_honest(cls, evidence: RunRecord) -> Answers:
        found = [target.message(evidence, *which) for which in evidence.messages()]
        return cls(found, [None] * len(found), ThreatModel())

    @classmethod
    def to_altered(cls, evidence: RunRecord, attack: ImageAttack, draw: int) -> Answers:
        found = [target.altered(evidence, *which, attack, draw) for which in evidence.messages()]
        refusals = [None if played.refusal is None else _pattern(played.refusal) for _, played in found]
        return cls([seen for seen, _ in found], refusals, ThreatModel(download="altered", public=True), draw)

    def together(self) -> Answers:
        """The mean of the changes, as the message of one client that holds all of the samples."""
        observed = [one for seen in self.targets for one in seen.observe(self.threat)]
        counts = [one.num_examples or 0 for one in observed]
        shared = {
            name: torch.stack([one.shared[name] * n for one, n in zip(observed, counts, strict=True)]).sum(0) / sum(counts)
            for name in observed[0].shared
        }
        mean = replace(observed[0], shared=shared, num_examples=sum(counts))
        images, labels = (torch.cat([getattr(one, what) for one in self.targets]) for what in ("images", "labels"))
        whole = replace(self.targets[0], images=images, labels=labels, observe=lambda threat: [mean])
        return replace(self, targets=[whole], refusals=self.refusals[:1])

    def attacked(self, attack: ImageAttack, copies: Sequence[int]) -> list[dict[str, Any]]:
        """Of each answer the number of images, how many are recovered, and for how many a copy would count."""
        results = []
        for seen, refusal, copied in zip(self.targets, self.refusals, copies, strict=True):
            made = attempt(Attacker(attack, self.threat), seen.observe(self.threat), seen.images, seen.labels, self.draw)
            recovered = 0 if made.scores is None else made.scores.recovered[RECOVERED].successes
            found = {"n": len(seen.images), "recovered": recovered, "copies": copied, "refused": refusal}
            results.append(found if made.scores is not None else found | {"inapplicable": str(made.inapplicable)})
        return results


def _pattern(refusal: str) -> str:
    """What a client's check names: rows, or columns."""
    found = re.search(r"its (rows|columns)", refusal)
    return refusal if found is None else found[1]
