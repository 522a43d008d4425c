"""The one config of a run: typed, validated, and written to YAML.

A run is a function of this object. ``None`` in a field means "what the data set or the method suggests";
:func:`fedpriv.simulation.inputs.loading.load` fills those in, and it is the filled-in config that a run stores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from fedpriv.config.data import DataConfig
from fedpriv.config.machinery import AboutConfig, ExecutorConfig, TrackingConfig
from fedpriv.config.model import ModelConfig
from fedpriv.config.sections import NamedOptions, Section
from fedpriv.config.shares import USUAL_PARTICIPANTS, part_of
from fedpriv.config.training import EvalConfig, TrainConfig
from fedpriv.config.wire import PrivacyConfig, WireConfig
from fedpriv.errors import UsageError
from fedpriv.untrusted import plain_yaml


class RunConfig(Section):
    """Everything that decides what a run computes, and where its record goes."""

    method: NamedOptions = Field(NamedOptions(name="mpfedcon"), description="a name of `fedpriv methods`, and its options")
    objective: NamedOptions | None = Field(
        None, description="client objective instead of the method's own: a name of `fedpriv methods`, and its options"
    )
    aggregation: NamedOptions | None = Field(None, description="server aggregation instead of the method's own, and its options")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    executor: ExecutorConfig = ExecutorConfig()
    tracking: TrackingConfig = TrackingConfig()
    about: AboutConfig = AboutConfig()
    seed: NonNegativeInt = Field(0, description="the run's seed; every random draw derives from it")
    device: str = Field("cpu", description="torch device")
    threads: int = Field(1, ge=1, le=1024, description="torch threads; part of the config because float sums depend on it")
    plugins: tuple[Path, ...] = Field((), description="Python files that register what the config names (--plugin)")
    run_dir: Path | None = Field(None, description="the run's folder; null: runs/<date>-<method>-<data>-s<seed>-<tag>")

    @model_validator(mode="before")
    @classmethod
    def _parts_alone_are_fedavgs(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        usual = "fedavg" if values.get("objective") or values.get("aggregation") else "mpfedcon"
        method = values.get("method", usual)
        return {**values, "method": {"name": usual, **method} if isinstance(method, dict) else method}

    @field_validator("method", "objective", "aggregation", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_no_contradiction(self) -> RunConfig:
        if (why := next(self._contradictions(), None)) is not None:
            raise ValueError(why)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Keys of several sections that do not go together, a line each."""
        data, train, privacy = self.data, self.train, self.privacy
        named = {"data.name": data.name, "run_dir": self.run_dir, "tracking.experiment": self.tracking.experiment}
        for key, name in named.items():
            if name is not None and not str(name).isprintable():
                yield f"{key} {str(name)!r} holds a character that cannot be shown, such as a line break"
        if data.image_only + data.text_only > 1:
            yield "data.image_only and data.text_only are shares of the clients: together at most 1"
        if data.task == "regression" and train.class_weights is not None:
            yield "train.class_weights: labels are numbers (data.task regression), and no classes; leave it out"
        if train.patience is not None and self.eval.split == "test":
            yield "train.patience would choose the last round on test data; eval.split=validation, with data.validation_fraction"
        if train.patience is not None and self.eval.fresh_head:
            yield "eval.fresh_head is tested after the last round, which train.patience leaves open; leave one out"
        if privacy.level == "client" and train.min_uploads > 1:
            yield "train.min_uploads: under client-level DP a round with few uploads is merged too; leave it out"
        if privacy.level == "sample" and privacy.canaries:
            if not train.heavy_ball or train.carries_steps:
                yield (
                    "privacy.canaries at sample level are read off the uploads as sums of gradients; optimizer sgd without "
                    "optimizer_options and without keep_optimizer"
                )
            if self.wire.secure_aggregation:
                yield "privacy.canaries at sample level are read off single uploads; leave secure_aggregation out"
        if (why := self._selects_nobody()) is not None:
            yield why
        if (train.selection == "schedule") != (train.schedule is not None):
            yield "train.selection schedule and train.schedule, a file with a line of clients a round, go together"
        if isinstance(train.schedule, tuple):
            for number, clients in enumerate(train.schedule, 1):
                if not clients or len(set(clients)) < len(clients):
                    yield f"train.schedule, round {number}: {list(clients)}: at least one client, each once"
            if len(train.schedule) < train.rounds:
                yield f"train.schedule names clients for {len(train.schedule)} of {train.rounds} rounds"
        kept = self.wire.keep_payloads
        if isinstance(kept, tuple) and kept[-1] > train.rounds:
            yield f"wire.keep_payloads names round {kept[-1]}, and the run has {train.rounds} (train.rounds)"

    def _selects_nobody(self) -> str | None:
        share = self.train.participation
        if share is None or part_of(self.data.clients, share) >= 1:
            return None
        return (
            f"train.participation {share} of {self.data.clients} clients selects no client; "
            f"at least {1 / self.data.clients:g} selects one"
        )

    def with_values(self, section: str, **values: Any) -> RunConfig:
        """The config with other values of some keys of a section; they are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def with_clients(self, number: int) -> RunConfig:
        """The config for so many clients; :class:`UsageError` where it then selects none of them."""
        config = self.with_values("data", clients=number)
        if (why := config._selects_nobody()) is not None:
            raise UsageError(why)
        return config

    @property
    def called(self) -> str:
        """The name of what trains, for people: the method's, and those of the parts that replace its own."""
        return "-".join(part.name for part in (self.method, self.objective, self.aggregation) if part is not None)

    def participants_of(self, available: int) -> int:
        """How many of so many clients take part in a round."""
        share = self.train.participation
        return min(USUAL_PARTICIPANTS, available) if share is None else max(1, part_of(available, share))

    def with_check(self, check: bool) -> RunConfig:
        """The same, whose clients refuse downloads with marks of an attack, or (false) take them unchecked."""
        return self.with_values("wire", check_downloads=check)

    def to_yaml(self) -> str:
        """All keys as YAML, for a config with nothing left open: read back, each of them counts as chosen."""
        return plain_yaml.dump(self.model_dump(mode="json"))

    def chosen(self) -> dict[str, Any]:
        """The keys that were set, nested, as JSON has them: read back, what data and method suggest still fills in the others."""
        return self.model_dump(mode="json", exclude_unset=True)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the keys that decide the run's numbers and are not at their defaults, so that new options do not
        change it.

        Left out are the keys on storage and tracking, the score that is looked at first, and the executor, which changes
        numbers by rounding only.
        """
        stored: Any = {
            "run_dir": True,
            "plugins": True,
            "tracking": True,
            "about": True,
            "executor": True,
            "data": {"dir"},
            "model": {"init"},
            "eval": {"metric"} if self.train.patience is None else set(),
            "wire": {"keep_payloads", "check_downloads"},
        }
        body = self.model_dump(mode="json", exclude=stored, exclude_defaults=True)
        body = {key: value for key, value in body.items() if value != {}}  # such a section differs only in what is excluded
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
