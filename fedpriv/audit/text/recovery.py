"""Attacks on the texts behind a run's real messages, and on the easiest case: simulated clients that hold one text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fedpriv.attacks.core.text_registry import text_attack
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.single_images import single_images
from fedpriv.audit.formats import named
from fedpriv.audit.progress import Say, spent
from fedpriv.audit.text.attempts import SEEKS, TextAttacker, TextAttempt, attempt_text
from fedpriv.audit.text.figures import guess, left_of, score_figures, text_figures
from fedpriv.audit.text.target import TextTarget, message, of_messages

EASIEST = 4
"""Number of texts of the easiest case."""
BUDGET: dict[str, dict[str, Any]] = {
    "tag": {"steps": 100, "starts": 1, "sweeps": 10},
    "span": {"steps": 100, "starts": 2, "budget": 20_000},
}
"""Attack -> options that differ from its defaults; with a pretrained encoder a step takes about a second, and testing a thousand
sentences two."""


@dataclass(frozen=True)
class Read:
    """A target with all attempts on it."""

    target: TextTarget
    kind: str
    round: int
    client: int | str
    attempts: list[TextAttempt]
    seed: int

    def described(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target.title,
            "kind": self.kind,
            "round": self.round,
            "client": self.client,
            "texts": len(self.target.ids),
            "attempts": [_described(one, self.target) for one in self.attempts],
            "baseline": score_figures(guess(self.target, self.seed)),
        }


def on_message(evidence: Evidence, round: int, client: int, seed: int, say: Say) -> Read:
    """Attack a client's message of a round."""
    target = message(evidence, round, client)
    sender = evidence.sender(round, client)
    target = replace(target, title=f"round {round}, {named(sender)}: {len(target.ids)} training texts")
    return _read(target, "message", round, sender, seed, say)


def on_single_texts(evidence: Evidence, round: int, client: int, seed: int, say: Say) -> Read:
    """Attack the messages of simulated clients that hold one text each."""
    n = min(EASIEST, len(evidence.labels(client)))
    results = single_images(evidence, round, client, n)
    title = f"clients with one text each, {n} of client {client}'s, in round {round}"
    ids, labels = evidence.texts(client)[:n], evidence.labels(client)[:n]
    target = of_messages(evidence, title, results, ids, labels)
    return _read(target, "single text", round, client, seed, say)


def _read(target: TextTarget, kind: str, round: int, client: int | str, seed: int, say: Say) -> Read:
    tried = [TextAttacker(text_attack(name)(**BUDGET.get(name, {}))) for name in ("tokens", *SEEKS)]
    if target.hidden:
        tried += [replace(one, threat=replace(one.threat, top="initial")) for one in tried if one.attack.name in SEEKS]
    tried += [replace(one, what=what) for what in target.statistics for one in tried]
    attempts = []
    for attacker in tried:
        say(f"{target.title}: {attacker.name}")
        attempts.append(attempt_text(attacker, target, seed, lambda: spent(say)))
    return Read(target, kind, round, client, attempts, seed)


def _described(one: TextAttempt, target: TextTarget) -> dict[str, Any]:
    """:func:`fedpriv.audit.text.figures.text_figures`, with the attacker's knowledge and budget, and what is left in words."""
    row = text_figures(one, target) | {"knows": one.attacker.threat.sentences(images=False), "budget": _budget(one.attacker)}
    row["statistic"] = one.attacker.what or None
    row.pop("threat")
    return {"inapplicable": None, "recovered": [], **row, "left_says": " ".join(left_of(one)) or None}


def _budget(attacker: TextAttacker) -> str:
    words = {"steps": "step of Adam", "starts": "start", "sweeps": "sweep"}
    options = {f.name: getattr(attacker.attack, f.name) for f in fields(attacker.attack)}  # type: ignore[arg-type]
    counts = {word: options[name] for name, word in words.items() if name in options}
    return ", ".join(_counted(n, *word.partition(" ")) for word, n in counts.items()) or "no optimisation"


def _counted(n: int, word: str, space: str, rest: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}{space}{rest}"
