"""The tensors that leave a client, and what each party knows from them."""

from __future__ import annotations

import hashlib
import json
from math import prod

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import BYTES, kinds_besides, kinds_of_model
from fedpriv.audit.results.wire import RoundTraffic, Schema, TensorInfo, Wire
from fedpriv.wire import STATISTIC, Sealed
from fedpriv.wire.report import Report

IN_TRANSIT = (
    "a party that reads the messages in transit: the same messages as the server",
    "a party that sees only encrypted traffic: which clients take part when, and the size of every message",
)
"""Their knowledge, in sentences."""


def crossed(record: RunRecord) -> Wire:
    """The tensors of the kept messages and those that were never sent, and the bytes of every round."""
    store = record.store
    ups = [(round, client, store.upload(round, client)) for round, client in record.messages()]
    downs = [sealed for round in store.rounds() if (sealed := store.download(round)) is not None]
    alike: dict[str, list[tuple[Sealed, str]]] = {}
    for round, client, sealed in ups:
        alike.setdefault(_hash(sealed), []).append((sealed, f"round {round}, {record.sender(round, client).named}"))
    return Wire(
        _tensors(record, [sealed for *_, sealed in ups], downs, store.broadcast()),
        _facts(ups[0][2]),
        tuple(
            RoundTraffic(line["round"], line["metrics"]["bytes_up"], line["metrics"]["bytes_down"])
            for line in record.folder.records()
        ),
        tuple(
            Schema(hash, len(group[0][0].schema), group[0][0].nbytes, tuple(name for _, name in group))
            for hash, group in alike.items()
        ),
    )


def knowledge(record: RunRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The knowledge of the server and of outsiders, in sentences."""
    sealed = record.store.upload(*record.messages()[0])
    server = [
        "follows the protocol and keeps every message of every round (honest but curious)",
        "knows the architecture, the schedule of local training and who took part in which round",
        "knows the weights that it sent to the clients",
    ]
    if record.store.broadcast() is not None:
        server.append(
            "knows the initial weights of all layers, even of those that are never shared: it broadcast them in round 0"
        )
    if sealed.num_examples is not None:
        server.append("receives each client's number of training samples")
    if (report := record.store.report(*record.messages()[0])) is not None:
        server.append(f"receives a report beside each upload: {', '.join(_contents(report))}")
    server += record.of_sums()
    if statistics := kinds_besides(sealed.schema, kinds_of_model(record.federation.resident.net)):
        server.append(f"receives statistics besides weights: {', '.join(statistics)}")
    if sealed.transforms:
        server.append(f"knows the transforms of an upload: {', '.join(sealed.transforms)}")
    return tuple(server), IN_TRANSIT


def conditions(record: RunRecord) -> tuple[str, ...]:
    """Conditions of the run that make attacks harder or easier by accident."""
    net, augment = record.federation.resident.net, record.config.data.augment
    encoder, tune = record.federation.prepared.encoder, record.federation.config.model.tune
    notes = [
        "no augmentation"
        if augment == "none"
        else f"augmentation {augment}: clients trained on altered copies; who recovers a copy recovers the image"
    ]
    if encoder is not None:
        learns = {"full": "learns as a whole", "lora": "is frozen but for LoRA's adapters", "head": "is frozen"}
        notes.append(f"the text encoder {encoder.name} {learns[tune or 'full']}")
    return (*notes, *net_conditions(net))


def net_conditions(net: nn.Module) -> tuple[str, ...]:
    """The conditions that follow from the net."""
    drops = [module.p for module in net.modules() if isinstance(module, nn.Dropout)]
    notes = [f"dropout of {', '.join(dict.fromkeys(f'{p:g}' for p in drops))} while training" if drops else "no dropout"]
    if has_batch_norm(net):
        notes.append("BatchNorm: clients and attacks normalise by the batch")
    return tuple(notes)


def has_batch_norm(net: nn.Module) -> bool:
    """Whether the net normalises by the batch."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


def _tensors(record: RunRecord, ups: list[Sealed], downs: list[Sealed], broadcast: Sealed | None) -> tuple[TensorInfo, ...]:
    up, down = ({name for sealed in group for name in sealed.schema} for group in (ups, downs))
    known = {name: code for sealed in (*([broadcast] if broadcast else []), *downs, *ups) for name, code in sealed.schema.items()}
    space = record.federation.resident.space
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
    """The contents of a client's report, in words."""
    opened = Report.of(report)
    contents = ["the number of training samples", *(["the mean training loss"] if opened.loss is not None else [])]
    contents += ["the sampling rate and the steps of DP-SGD"] if opened.spent else []
    return contents + sorted({name.partition("/")[0] for name in opened.numbers})


def _hash(sealed: Sealed) -> str:
    return hashlib.sha256(json.dumps(sorted(sealed.schema.items())).encode()).hexdigest()[:12]
