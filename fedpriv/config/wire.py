"""What happens to an upload before it is sent: transforms, secure aggregation, differential privacy."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from fedpriv.config.sections import Section


class WireConfig(Section):
    """Transforms of an upload before it is sent, and stored payloads."""

    transforms: tuple[dict[str, Any], ...] = Field((), description="in order; each {name: ..., option: value}")
    secure_aggregation: bool = Field(
        False,
        description="the server learns only the sum of a round's uploads; not for aggregations that need single uploads",
    )
    check_downloads: bool | None = Field(
        None,
        description="clients refuse weights with patterns of an attack on their data; null: a simulation warns of them once and "
        "goes on (in deployments each client's own file decides); see docs/malicious-server.md",
    )
    keep_payloads: Literal["none", "default", "all"] | tuple[PositiveInt, ...] = Field(
        "default",
        description="messages that the run folder keeps, as they were sent. default: those of three clients in the first, "
        "middle and last round; all; none; or rounds, of which the messages of all clients are kept",
    )

    @field_validator("keep_payloads", mode="before")
    @classmethod
    def _rounds_as_on_the_command_line(cls, value: Any) -> Any:
        if value in ("none", "default", "all"):
            return value
        given = value if isinstance(value, list | tuple) else str(value).split(",")
        rounds = {int(text) for value in given if (text := str(value).strip()).isdecimal()}
        if not rounds or 0 in rounds or len(rounds) < len(given):
            raise ValueError("should be none, default, all, or rounds, each once, such as 1,5,10")
        return tuple(sorted(rounds))


class PrivacyConfig(Section):
    """Differential privacy; the summary of a run says what its epsilon means and what it does not cover."""

    level: Literal["none", "client", "sample"] = Field(
        "none",
        description="unit of privacy: a client (the server adds noise) or a training sample (DP-SGD at clients)",
    )
    noise: PositiveFloat | None = Field(
        None, description="noise multiplier: standard deviation of the noise over `clip`; null: computed for target_epsilon"
    )
    clip: float = Field(1.0, ge=1e-6, le=1e9, description="bound on the L2 norm of a client's change, or of a sample's gradient")
    clipping: Literal["per_sample", "ghost"] = Field(
        "per_sample",
        description="level sample: compute each sample's gradient (any loss), or only its norm (Opacus' ghost clipping: less "
        "memory, no loss that depends directly on the parameters; not against a malicious server)",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta at which epsilon is given")
    target_epsilon: PositiveFloat | None = Field(None, description="epsilon that the whole run may spend")
    statistics_epsilon: NonNegativeFloat | None = Field(
        None,
        description="epsilon of the statistics by which tables and images are scaled, a part of target_epsilon; 0: there are "
        "none, and numbers are scaled by their bounds alone (data.bounds); null: a tenth of target_epsilon",
    )
    accountant: Literal["rdp", "prv"] = Field("rdp", description="accountant whose epsilon counts; the summary has both")
    canaries: NonNegativeInt = Field(
        0, description="canaries to plant, to measure the epsilon spent; half of them are used; simulations only"
    )

    @model_validator(mode="after")
    def _says_how_much(self) -> PrivacyConfig:
        given = self.noise is not None or self.target_epsilon is not None
        if self.level == "none" and given:
            raise ValueError("a noise or a target_epsilon without a level; --dp client or --dp sample")
        if self.level == "none" and self.canaries:
            raise ValueError("canaries measure an epsilon, so they need a level; --dp client or --dp sample")
        if self.level == "none" and self.statistics_epsilon is not None:
            raise ValueError("a statistics_epsilon without a level; --dp client or --dp sample")
        if self.target_epsilon is not None and (self.statistics_epsilon or 0) >= self.target_epsilon:
            share, target = self.statistics_epsilon, self.target_epsilon
            raise ValueError(f"statistics_epsilon {share:g} leaves nothing of target_epsilon {target:g} for training")
        if self.level != "none" and not given:
            raise ValueError(f"level {self.level} needs a noise multiplier (--noise 1.0) or a --target-epsilon")
        return self
