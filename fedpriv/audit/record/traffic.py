"""The tensors that leave a client, and what each party knows from them."""

from __future__ import annotations

import hashlib
import json
from math import prod

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import BYTES, kinds_besides, kinds_of_model
from fedpriv.audit.results import RoundTraffic, Schema, TensorInfo, Wire
from fedpriv.wire import STATISTIC, Sealed
from fedpriv.wire.report import Report

IN_TRANSIT = (
    "a party that reads the messages in transit: the same messages as the server",
    "a party that sees only encrypted traffic: which clients take part when, and the size of every message",
)
"""What outsiders know."""


def crossed(evidence: RunRecord) -> Wire:
    """What was sent in the kept messages, and the bytes of every round; with the tensors of the net that were never sent."""
    store = evidence.store
    ups = [(round, client, store.upload(round, client)) for round, client in evidence.messages()]
    downs = [found for round in store.rounds() if (found := store.download(round)) is not None]
    alike: dict[str, list[tuple[Sealed, str]]] = {}
    for round, client, sealed in ups:
        alike.setdefault(_hash(sealed), []).append((sealed, f"round {round}, {evidence.sender(round, client).named}"))
    return Wire(
        _tensors(evidence, [sealed for *_, sealed in ups], downs, store.broadcast()),
        _facts(ups[0][2]),
        tuple(
            RoundTraffic(one["round"], one["metrics"]["bytes_up"], one["metrics"]["bytes_down"])
            for one in evidence.folder.records()
        ),
        tuple(
            Schema(hash, len(those[0][0].schema), those[0][0].nbytes, tuple(name for _, name in those))
            for hash, those in alike.items()
        ),
    )


def knowledge(evidence: RunRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The threat model of the report: what the server knows, and what outsiders do, in sentences."""
    sealed = evidence.store.upload(*evidence.messages()[0])
    server = [
        "follows the protocol and keeps every message of every round (honest but curious)",
        "knows the architecture, the schedule of local training and who took part in which round",
        "knows the weights that it sent to the clients",
    ]
    if evidence.store.broadcast() is not None:
        server.append(
            "knows the initial weights of all layers, even of those that are never shared: it broadcast them in round 0"
        )
    if sealed.num_examples is not None:
        server.append("receives each client's number of training samples")
    if (report := evidence.store.report(*evidence.messages()[0])) is not None:
        server.append(f"receives a report beside each upload: {', '.join(_contents(report))}")
    server += evidence.of_sums()
    if statistics := kinds_besides(sealed.schema, kinds_of_model(evidence.federation.resident.net)):
        server.append(f"receives statistics besides weights: {', '.join(statistics)}")
    if sealed.transforms:
        server.append(f"knows the transforms of an upload: {', '.join(sealed.transforms)}")
    return tuple(server), IN_TRANSIT


def conditions(evidence: RunRecord) -> tuple[str, ...]:
    """Conditions of the run that make attacks harder or easier by accident."""
    net, augment = evidence.federation.resident.net, evidence.config.data.augment
    encoder, tune = evidence.federation.prepared.encoder, evidence.federation.config.model.tune
    remarks = [
        "no augmentation"
        if augment == "none"
        else f"augmentation {augment}: clients trained on altered copies; who recovers a copy recovers the image"
    ]
    if encoder is not None:
        learns = {"full": "learns as a whole", "lora": "is frozen but for LoRA's adapters", "head": "is frozen"}
        remarks.append(f"the text encoder {encoder.name} {learns[tune or 'full']}")
    return (*remarks, *of_net(net))


def of_net(net: nn.Module) -> tuple[str, ...]:
    """The conditions that are the net's."""
    drops = [module.p for module in net.modules() if isinstance(module, nn.Dropout)]
    remarks = [f"dropout of {', '.join(f'{p:g}' for p in drops)} while training" if drops else "no dropout"]
    if has_batch_norm(net):
        remarks.append("BatchNorm: clients and attacks normalise by the batch")
    return tuple(remarks)


def has_batch_norm(net: nn.Module) -> bool:
    """Whether the net normalises by the batch."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


def _tensors(evidence: RunRecord, ups: list[Sealed], downs: list[Sealed], broadcast: Sealed | None) -> tuple[TensorInfo, ...]:
    up, down = ({name for sealed in group for name in sealed.schema} for group in (ups, downs))
    known = {name: code for sealed in (*([broadcast] if broadcast else []), *downs, *ups) for name, code in sealed.schema.items()}
    space = evidence.federation.resident.space
    for entry in space.entries:
        known.setdefault(entry.name, ("F32", tuple(entry.shape)))
    order = {name: i for i, name in enumerate(space.names)}
    names = sorted(known, key=lambda name: (order.get(name.split("~")[0], len(order)), name))
    return tuple(
        TensorInfo(
            name=name,
            role="statistic" if name.startswith(STATISTIC) else name.split(".")[0],
            dtype=known[name][0],
            shape=tuple(known[name][1]),
            bytes=prod(known[name][1]) * BYTES[known[name][0]],
            up=name in up,
            down=name in down,
            broadcast=broadcast is not None and name in broadcast.schema,
        )
        for name in names
    )


def _facts(sealed: Sealed) -> tuple[str, ...]:
    stated = [f"kind of the tensors ({sealed.kind})", "round", "client"]
    if sealed.num_examples is not None:
        stated.append("number of training samples")
    return (*stated, *(["what the upload went through"] if sealed.transforms else []))


def _contents(report: Sealed) -> list[str]:
    """What a client's report says, in words."""
    said = Report.of(report)
    contents = ["the number of training samples", *(["the mean training loss"] if said.loss is not None else [])]
    contents += ["the sampling rate and the steps of DP-SGD"] if said.spent else []
    return contents + sorted({name.partition("/")[0] for name in said.numbers})


def _hash(sealed: Sealed) -> str:
    return hashlib.sha256(json.dumps(sorted(sealed.schema.items())).encode()).hexdigest()[:12]
