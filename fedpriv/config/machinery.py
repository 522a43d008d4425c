"""The executor of the clients, the tracker of a run's records, and what a person says of the run.

No number depends on these, except for rounding."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from fedpriv.config.sections import Section
from fedpriv.untrusted.addresses import tracking_address


class ExecutorConfig(Section):
    """The executor of the clients of a round. Results agree within the tolerance of floating point."""

    name: Literal["auto", "sequential", "vectorized"] = Field(
        "auto",
        description="sequential: one client after another; vectorized: groups of clients as one wide net; auto: whichever "
        "is faster with the net, which the run then records",
    )
    group_size: int | None = Field(
        None, ge=1, description="clients that train together; null: half of the participants, at most 10"
    )
    workers: Annotated[int, Field(ge=1)] | Literal["auto", "ray"] = Field(
        "auto",
        description="processes that the groups (sequential: the clients) are spread over, or ray: actors of a Ray cluster; auto: "
        "one for each core that has a group and enough work, which the run then records; no number depends on it",
    )
    ray_address: str | None = Field(None, description="HOST:PORT of the Ray cluster; null: one of this machine alone")
    ray_workers: int | None = Field(None, ge=1, description="actors of the Ray cluster; null: one for each of its cores")
    compile: Literal["none", "default", "reduce-overhead"] = Field(
        "none",
        description="mode of torch.compile for the net of a group; reduce-overhead: CUDA graphs where shapes are static. "
        "Compiling takes a minute, and has not made rounds faster on a processor",
    )

    @property
    def spread(self) -> bool:
        """Whether the user wants the clients in other processes."""
        return self.workers not in ("auto", 1)

    def here(self) -> ExecutorConfig:
        """The same without a cluster, which may be gone."""
        alone = {"workers": 1, "ray_address": None, "ray_workers": None}
        return self.model_copy(update=alone) if self.workers == "ray" else self

    def in_this_process(self) -> ExecutorConfig:
        """The same in one process, unless the user wants several."""
        return self.model_copy(update={"workers": 1}) if self.workers == "auto" else self

    @model_validator(mode="after")
    def _ray_has_what_is_for_ray(self) -> ExecutorConfig:
        for key in ("ray_address", "ray_workers"):
            if self.workers != "ray" and getattr(self, key) is not None:
                raise ValueError(f"{key} is for workers: ray")
        return self


class AboutConfig(Section):
    """What a person says of a run, for the audit's page and for trackers."""

    title: str | None = Field(None, max_length=200, description="title of the run, in a line")
    owner: str | None = Field(None, max_length=200, description="who answers for the run")
    data: str | None = Field(None, max_length=1000, description="what the data are, for a reader who does not know them")

    @field_validator("title", "owner", "data")
    @classmethod
    def _can_be_shown(cls, value: str | None) -> str | None:
        if value is not None and not (value.strip() and value.isprintable()):
            raise ValueError("one line of text, with characters that can be shown")
        return value


class TrackingConfig(Section):
    """Where the records of a run are copied while it trains."""

    name: str = Field("mlflow", description="tracker: mlflow, tensorboard, or that of a plug-in")
    uri: str | None = Field(
        None, description="MLflow tracking URI; null: an SQLite file beside the run folders; 'none': no tracking"
    )
    experiment: str = Field("fedpriv", description="MLflow experiment name")
    wait: NonNegativeFloat = Field(
        2.0,
        description="seconds for which the end of a run waits for MLflow. Another process sends the rest; where that would end "
        "with the run, as in a container or a batch job, set more, such as 60",
    )
    system_metrics: bool = Field(False, description="record the load of CPU, memory, disk, network and GPU in MLflow, every 10 s")
    log_model: bool = Field(
        False, description="export the server's final model and log it in MLflow, as a PyTorch model; takes some seconds"
    )

    @field_validator("uri")
    @classmethod
    def _is_an_address_without_secrets(cls, uri: str | None) -> str | None:
        return uri if uri in (None, "none") else tracking_address(uri)
