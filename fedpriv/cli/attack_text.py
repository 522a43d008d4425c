"""``fedpriv attack`` on texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedpriv.cli.attack_request import Request, tell_replay
from fedpriv.cli.common import console
from fedpriv.cli.controls import held_to, progress, tell_controls, with_options
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.attacks.attack import TextAttack
    from fedpriv.attacks.core.status import Status
    from fedpriv.attacks.lab.trial import Attacker
    from fedpriv.audit.record.malicious import Replay
    from fedpriv.audit.results.texts import PartialLeakage, TextFigures, TextScoreMeans
    from fedpriv.audit.text.attempts import TextAttempt, TextTarget

USUAL: Mapping[str, tuple[int, int]] = {"tokens": (20, 8), "span": (10, 1), "tag": (2, 1), "token-imprint": (1, 1)}
"""Attack -> default number of messages, and of sentences in each. With MiniLM a message takes about 0.1 s, 5 s and three minutes
of CPU time."""
OTHERS = (5, 1)
"""The same for attacks of plug-ins."""


def attack_text(request: Request) -> dict[str, Any]:
    """Run an attack on texts: behind a message of a run, or behind single steps.

    Raises:
        UsageError: an option does not apply, or the run or the data set has no texts.
        FedprivError: a control failed.
    """
    from fedpriv.attacks.attack import text_attack
    from fedpriv.attacks.lab.trial import Trial
    from fedpriv.attacks.text.controls import text_controls
    from fedpriv.audit.text import figures

    name, seed, out = request.name, request.seed, console(width=120)
    target, played = _target(request), None
    attack = with_options(text_attack(name), name, request.options)
    if request.malicious:
        target, played = _altered(attack, target, request)
    malice = tell_replay(played, out)
    tried, guess = _attackers(attack, target), figures.guess(target, seed)
    baseline, attempts, rows = figures.score_figures(guess), [], []
    with progress(1 + len(tried)) as begin:
        begin(f"controls of {name}")
        controls = [] if attack.control is None else text_controls(attack, seed)
        tell_controls(controls, out)
        held_to(controls)
        for attacker in tried:
            begin(f"{target.title}: {attacker.name}")
            out.print(f"{attacker.name}: {'; '.join(attacker.threat.sentences('texts'))}", soft_wrap=True)
            attempt = target.run(attacker, Trial(seed))
            for line in figures.in_lines(attempt, target):
                out.print(line, soft_wrap=True)
            scores = figures.text_figures(attempt, target)
            status = figures.status_of(attempt, scores, baseline)
            if status.was_run and status.reasons:
                out.print(f"a failure of {attacker.name} is no evidence: {status.why}", soft_wrap=True)
            attempts.append(attempt)
            rows.append(_row(attempt, scores, status))
    out.print(figures.text_table(attempts, guess, target))
    return {
        "attack": name,
        **malice,
        "target": target.title,
        "messages": target.count,
        "sentences": len(target.ids),
        "seed": seed,
        "attackers": rows,
        "baselines": {figures.GUESS: _with_shares(baseline)},
        "controls": [vars(control) for control in controls],
    }


def _row(attempt: TextAttempt, figures: TextFigures | None, status: Status) -> dict[str, Any]:
    """An attempt as JSON."""
    row: dict[str, Any] = {"attacker": attempt.attacker.name, "threat": asdict(attempt.attacker.threat)}
    if attempt.left is not None:
        row["left"] = _with_shares(attempt.left)
    if figures is None:
        return row | {"inapplicable": status.why}
    row |= {**_with_shares(figures), "no_evidence": status.why or None}
    row["recovered"] = row.pop("examples")
    return row


def _with_shares(scores: TextScoreMeans | PartialLeakage) -> dict[str, Any]:
    """A record as JSON, its rates with their shares."""
    from fedpriv.attacks.scoring.scores import Rate

    rates = {name: rate for name, rate in vars(scores).items() if isinstance(rate, Rate)}
    return asdict(scores) | {name: asdict(rate) | {"share": rate.share} for name, rate in rates.items()}


def _attackers(attack: TextAttack, target: TextTarget) -> list[Attacker[TextAttack]]:
    """The attack itself and, where a hidden head matters, also one that knows the initial head."""
    from fedpriv.attacks.core.observation import ThreatModel
    from fedpriv.attacks.lab.trial import Attacker

    own = ThreatModel(download="altered") if attack.is_malicious() else ThreatModel()
    known = [ThreatModel(top="initial")] if target.hidden and attack.finds_order else []
    return [Attacker(attack, threat) for threat in (own, *known)]


def _altered(attack: TextAttack, honest: TextTarget, request: Request) -> tuple[TextTarget, Replay]:
    """What a client of the run sends after an altered download."""
    from fedpriv.audit.record.malicious import replay
    from fedpriv.audit.text import target as text_target

    if honest.beside:
        what = f"that of {request.run} also takes {honest.beside} with each text"
        raise UsageError(f"{attack.name} is for nets on texts alone; {what}")
    record, round, client = request.message()
    played = replay(record, round, client, attack, honest.public, request.seed)
    title = f"{honest.title}; download altered by {attack.name}"
    return text_target.of_messages(record, title, [played.message], honest.ids, honest.labels), played


def _target(request: Request) -> TextTarget:
    from fedpriv.audit.text import target as text_target

    if request.run is not None:
        return text_target.message(*request.message())
    count, size = USUAL.get(request.name, OTHERS)
    steps = text_target.Steps(
        count=request.count or count,
        size=request.batch_size or size,
        encoder=request.encoder,
        tune=request.tune or "full",
        mask_embeddings=request.mask_embeddings,
        masked=request.mask_layers or 0,
        noise=request.noise or 0.0,
        seed=request.seed,
    )
    if request.dataset is None:
        return text_target.made_up(steps)
    return text_target.samples(request.dataset, request.data_dir, steps, request.label)
