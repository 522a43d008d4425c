"""The measures of the table whose messages are synthetic: of an attack, or of several batches or noises, what it recovers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.attack import image_attack, text_attack
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.lab.attempts import attempt
from fedpriv.attacks.lab.image_controls import alteration
from fedpriv.attacks.lab.nets import observe, perceptron
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.baselines import nearest
from fedpriv.attacks.scoring.scores import RECOVERED, mse
from fedpriv.attacks.scoring.text_scores import score_text
from fedpriv.attacks.text.victims import Size, facts, observe_text, sentences, small_bert
from fedpriv.data.sources import load_dataset

SEED = 0


def on_images(config: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """An attack on messages of the controls' nets, a new net for each message."""
    setting = Setting(**{**config["setting"], "threat": ThreatModel(**config.get("threat", {}))})
    images, labels = setting.truth(SEED)
    if source == "cifar10":
        pool = load_dataset("cifar10").images[1]  # type: ignore[index]
        chosen = torch.randperm(len(pool), generator=torch.Generator().manual_seed(SEED))[: len(images)]
        images = pool[chosen] / 255
    attack = image_attack(config["attack"])(**config["options"])
    pairs = zip(images.split(setting.per_message), labels.split(setting.per_message), strict=True)
    alter = alteration(attack)
    observed = [message for i, pair in enumerate(pairs) for message in setting.observations(*pair, SEED + i, alter)]
    facts = {"net": setting.net, "size": setting.side, "batch": setting.per_message, "steps": setting.steps or 1}
    return [facts | tried(attack, setting.threat, observed, images, labels, config["attack"] == "fishing")]


def tried(
    attack: Any,
    threat: ThreatModel,
    observed: Sequence[Observation],
    images: Tensor,
    labels: Tensor,
    targeted: bool = False,
    together: bool = False,
) -> dict[str, Any]:
    """Mount an attack on each message ``(N,)``; images that it refuses are not recovered.

    Args:
        targeted: count only the images that the attack targets, those that it does not leave grey.
        together: attack all messages at once.
    """  # fmt: skip
    began, errors, refused, n = time.process_time(), list[float](), list[str](), 0
    groups = [observed] if together else [[message] for message in observed]
    size = len(images) // len(groups)
    for group, some, own in zip(groups, images.split(size), labels.split(size), strict=True):
        outcome = attempt(Attacker(attack, threat), group, some, own, SEED)
        if outcome.scores is None or outcome.images is None:
            refused.append(str(outcome.inapplicable))
            n += 1 if targeted else size
            continue
        counted = (outcome.images != 0.5).flatten(1).any(1) if targeted else torch.ones(size, dtype=torch.bool)
        errors += outcome.scores.mse[counted].tolist()
        n += int(counted.sum())
    recovered = sum(error < RECOVERED for error in errors)
    seconds = round(time.process_time() - began, 2)
    return {
        "n": n,
        "recovered": recovered,
        "mse": [float(f"{e:.4g}") for e in errors],
        "refused": refused,
        "cpu_seconds": seconds,
    }


def defended(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on gradients of single digits, all of one net, under noise or pruning that the attacker knows."""
    setting = Setting(kind="digits", side=8, images=config["images"], threat=ThreatModel(**config["threat"]))
    images, labels = setting.truth(SEED)
    observed = setting.observations(images, labels, SEED)
    flat = torch.stack([torch.cat([tensor.flatten() for tensor in message.shared.values()]) for message in observed])
    draw, altered = torch.Generator().manual_seed(SEED), list[Observation]()
    if noise := config.get("noise"):
        sigma = noise * float(flat.norm(dim=1).median()) / flat.shape[1] ** 0.5
        says = f"noise of {noise:g} of the gradient's norm"
        for message in observed:
            shared = {name: t + sigma * torch.randn(t.shape, generator=draw) for name, t in message.shared.items()}
            altered.append(replace(message, shared=shared, altered=Altered(variance=dict.fromkeys(shared, sigma**2))))
    else:
        says = f"{config['kept']:.0%} of the entries sent"
        least = flat.abs().topk(round(config["kept"] * flat.shape[1])).values[:, -1]
        for message, limit in zip(observed, least, strict=True):
            kept = {name: t.abs() >= limit for name, t in message.shared.items()}
            altered.append(
                replace(message, shared={n: t * kept[n] for n, t in message.shared.items()}, altered=Altered(kept=kept))
            )
    attack = image_attack(config["attack"])(**config["options"])
    facts = {"net": f"reference, {says}", "size": 8, "batch": 1, "steps": 1}
    copies = int((mse(nearest(images, setting.rest(SEED).images), images) < RECOVERED).sum())
    return [facts | tried(attack, setting.threat, altered, images, labels, together=True) | {"copies": copies}]


def digits(n: int, at: int) -> tuple[Tensor, Tensor]:
    """The ``at``-th ``n`` of scikit-learn's digits ``(n, 1, 8, 8)`` in [0, 1], in a random order, and their labels."""
    data = load_dataset("digits")
    assert data.images is not None
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(SEED))[at * n : (at + 1) * n]
    return data.images[0][order] / 255, data.train_labels[order]


def rectified(width: int, seed: int) -> Any:
    """64 -> width -> 64 -> 10 with ReLU and without BatchNorm."""
    return perceptron(seed, channels=1, height=8, width=8, hidden=width, activation=nn.ReLU, then=64)


def spear(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """SPEAR by batch and by noise, whose variance the attacker knows."""
    attack, cells = image_attack("spear")(**config["options"]), []
    for batch in config["batches"]:
        for noise in config["noise"]:
            observed, truth = [], [digits(batch, i) for i in range(config["messages"])]
            for i, (images, labels) in enumerate(truth):
                message = observe(rectified(config["width"], SEED + i), images, labels)
                if noise:
                    sigma, draw = noise * float(message.shared["body.1.weight"].std()), torch.Generator().manual_seed(SEED + i)
                    shared = {name: t + sigma * torch.randn(t.shape, generator=draw) for name, t in message.shared.items()}
                    message = replace(message, shared=shared, altered=Altered(variance=dict.fromkeys(shared, sigma**2)))
                observed.append(message)
            images, labels = (torch.cat(parts) for parts in zip(*truth, strict=True))
            says = {"net": f"MLP 64-{config['width']}-64-10", "size": 8, "batch": batch, "steps": 1, "noise": noise}
            cells.append(says | tried(attack, ThreatModel(), observed, images, labels))
    return cells


def after_epochs(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on the change of the weights over epochs of SGD."""
    attack, cells, n, size = image_attack(config["attack"])(**config["options"]), [], config["images"], config["batch_size"]
    for epochs in config["epochs"]:
        observed, truth = [], [digits(n, i) for i in range(config["messages"])]
        for i, (images, labels) in enumerate(truth):
            message = observe(rectified(config["width"], SEED + i), images, labels)
            schedule = Schedule(lr=config["lr"], steps=epochs * -(-n // size), batch_size=size)
            target = F.one_hot(labels, 10).float()
            change = simulate_local_update(message.net, message.weights, list(message.shared), images, target, schedule)
            observed.append(replace(message, kind="change", shared={k: t.detach() for k, t in change.items()}, schedule=schedule))
        images, labels = (torch.cat(parts) for parts in zip(*truth, strict=True))
        says = {"net": f"MLP 64-{config['width']}-64-10", "size": 8, "batch": n, "steps": schedule.steps}
        cells.append(says | tried(attack, ThreatModel(), observed, images, labels))
    return cells


def on_text(config: dict[str, Any], _: str) -> list[dict[str, Any]]:
    """An attack on gradients of a batch of random sentences; a sentence counts as recovered if every token is right."""
    size, batch, masked = Size(**config.get("net", {})), config.get("batch", 1), config.get("masked")
    ids, began = sentences([config["tokens"]] * config["sentences"], SEED, size), time.process_time()
    labels = torch.arange(len(ids)) % size.classes
    pairs = enumerate(zip(ids.split(batch), labels.split(batch), strict=True))
    attack = text_attack(config["attack"])(**config["options"])
    observed = [observe_text(_altered(attack, SEED + i, size, config["tokens"]), *pair, facts(size)) for i, pair in pairs]
    observed = [
        replace(message, shared={n: t for n, t in message.shared.items() if not masked or masked not in n})
        for message in observed
    ]
    scores = score_text(attack.run(observed, SEED), ids, labels, facts(size))
    whole = int((scores.multiset_recall == 1).sum()) if scores.exact is None else scores.exact.successes
    return [
        {
            "net": f"BERT of {size.layers} layers, width {size.width}, {size.words} words, random weights",
            "size": config["tokens"], "batch": batch, "steps": 1,
            "n": len(scores.recall) if scores.exact is None else len(ids), "recovered": whole,
            "recall": round(float(scores.recall.mean()), 4),
            "rouge": None if scores.rouge is None else round(float(scores.rouge.mean()), 4),
            "cpu_seconds": round(time.process_time() - began, 2),
        }
    ]  # fmt: skip


def _altered(attack: Any, seed: int, size: Size, tokens: int) -> Any:
    """The net that the client is sent; a malicious server knows 200 other sentences."""
    net, others = small_bert(seed, size), sentences([tokens] * 200, SEED + 1, size)
    if attack.is_malicious():
        honest = observe_text(net, others[:1], torch.zeros(1, dtype=torch.long), facts(size))
        net.load_state_dict(attack.alter(honest, others, seed), strict=False)
    return net
