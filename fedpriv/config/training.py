"""The round schedule, the clients' optimiser, and when accuracy is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedpriv.config.optimisers import (
    NOT_ELEMENTWISE,
    OPTIMISERS,
    SGD,
    OptimiserName,
    OptimiserOptions,
    optimiser_options,
    read_schedule,
)
from fedpriv.config.sections import NamedOptions, Section


class TrainConfig(Section):
    """The round schedule and the clients' optimiser."""

    rounds: PositiveInt = Field(30, description="number of rounds T")
    participation: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the clients that hold training data, sampled each round; null: as the data set suggests, else ten "
        "of them, or all where there are fewer",
    )
    patience: PositiveInt | None = Field(
        None,
        description="the run ends after so many evaluations in a row without a better `eval.metric`; needs eval.split "
        "validation; null: all rounds are run",
    )
    selection: Literal["uniform", "window", "all", "schedule"] | None = Field(
        None,
        description="who takes part: drawn uniformly, consecutive windows of a shuffled order (SimProx), all clients, or as "
        "`schedule` says; null: as the method suggests, else uniform",
    )
    schedule: tuple[tuple[NonNegativeInt, ...], ...] | Path | None = Field(
        None, description="the clients of each round, or a file with a line of them for each (selection: schedule)"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a participant of a round fails before it trains, and does not answer; simulations only",
    )
    late: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that the answer of a client that trains comes after the deadline: it crosses the wire and is "
        "left out; simulations only",
    )
    local_epochs: PositiveInt = Field(5, description="epochs over the client's data (layered methods: of the encoder phase)")
    local_steps: PositiveInt | None = Field(
        None,
        description="exactly this many steps of local training (layered methods: of the encoder phase), over as many epochs as "
        "needed; null: all epochs",
    )
    batch_size: PositiveInt = Field(10, description="samples per SGD step; the last partial batch is kept")
    min_batch: PositiveInt = Field(1, description="smaller batches are skipped; 2 where BatchNorm normalises vectors")
    accumulate: PositiveInt = Field(
        1,
        description="gradient accumulation: parts in which a batch passes the net, so that a large batch fits into memory; "
        "BatchNorm and dropout then act on each part",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="precision of training's forward and backward passes (torch.autocast); parameters, gradients, the loss, "
        "frozen models and evaluation are always in float32",
    )
    optimizer: OptimiserName = Field(
        "sgd", description="the clients' optimiser in torch.optim; those that are not elementwise are not supported"
    )
    optimizer_options: dict[str, Any] = Field(
        {}, description="its options by torch's names, such as {alpha: 0.9} of rmsprop or {nesterov: true} of sgd"
    )
    keep_optimizer: bool = Field(
        False,
        description="true: a client's optimiser goes on, in its next round, from its last state (momentum, moments), which "
        "never leaves the client; false: it begins anew at each phase",
    )
    lr: PositiveFloat = Field(0.01, description="learning rate")
    lr_schedule: NamedOptions | None = Field(
        None,
        description="the learning rate over the rounds: cosine, step, exponential, linear, polynomial or one_cycle with options "
        "by torch's names, such as cosine:eta_min=1e-4; null: as lr_decay says",
    )
    local_lr_schedule: NamedOptions | None = Field(
        None,
        description="a schedule of the same kinds over the steps of each phase of training, from the round's rate on, after "
        "the warm-up; adaptation before a test has none",
    )
    warmup_steps: NonNegativeInt = Field(
        0,
        description="steps over which the learning rate rises linearly from 0 (first step) to the full one, in each phase of "
        "training (transformers' constant schedule with warm-up); adaptation before a test has none",
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="the learning rate of round t is lr * lr_decay^(t-1)")
    clip_grad_norm: PositiveFloat | None = Field(None, description="bound on the L2 norm of a step's gradient; null: none")
    momentum: float = Field(0.5, ge=0, lt=1, description="heavy-ball momentum of sgd")
    class_weights: Literal["balanced"] | None = Field(
        None,
        description="balanced: in the cross-entropy, a sample of class c weighs n / (C n_c), where n_c of the n training "
        "samples of all clients are of that class, one of C (as in scikit-learn), so that rare classes count as much as "
        "frequent ones; null: all samples weigh the same",
    )
    weight_decay: NonNegativeFloat = Field(1e-4, description="L2 penalty on weights; adamw: decoupled decay; rprop: none")
    weight_decay_bias: NonNegativeFloat = Field(0.0, description="L2 penalty on biases and norm scales")
    cache_features: bool = Field(
        True, description="with a frozen encoder and no augmentation, compute its features once per phase"
    )
    on_nan: Literal["stop", "drop"] = Field(
        "stop",
        description="a client whose loss or weights are not finite: stop the run, or drop its upload, which is the default "
        "with clients on other machines, and always so under client-level DP",
    )
    on_refused: Literal["drop", "stop"] = Field(
        "drop",
        description="an invalid answer of a client: leave it out, or stop the run; under client-level DP it is always left out",
    )
    min_uploads: PositiveInt = Field(1, description="with fewer valid uploads in a round the server's model stays as it is")
    max_update_norm: PositiveFloat | None = Field(
        None,
        description="refuse an upload whose change has a larger L2 norm, as it arrives (before the server's own clipping under "
        "client-level DP); null: no bound",
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def _is_elementwise(cls, value: Any) -> Any:
        if isinstance(value, str) and value in NOT_ELEMENTWISE:
            raise ValueError(
                f"{value} {NOT_ELEMENTWISE[value]}, and clients' models are flat rows; use one of {', '.join(OPTIMISERS)}"
            )
        return value

    @field_validator("optimizer_options")
    @classmethod
    def _are_the_optimisers(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "optimizer" in info.data:
            optimiser_options(info.data["optimizer"], value)
        return value

    @field_validator("lr_schedule", "local_lr_schedule", mode="before")
    @classmethod
    def _has_its_options(cls, value: Any) -> Any:
        return read_schedule(value)

    @model_validator(mode="after")
    def _has_no_contradiction(self) -> TrainConfig:
        size, options = self.batch_size, self.options
        if self.min_batch > size:
            raise ValueError(f"min_batch {self.min_batch} skips every batch of batch_size {size}; at most {size}")
        if self.local_steps is not None and 0 < self.local_steps <= self.warmup_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps}: a phase of {self.local_steps} local_steps never reaches its lr")
        if self.lr_schedule is not None and self.lr_decay != 1:
            raise ValueError(
                f"lr_schedule and lr_decay {self.lr_decay:g} both say how the rate changes from round to round; leave lr_decay "
                f"out, or set lr_schedule=exponential:gamma={self.lr_decay:g}, which is the same"
            )
        if isinstance(options, SGD) and options != SGD() and (not self.momentum or (options.nesterov and options.dampening)):
            raise ValueError("optimizer_options of sgd: nesterov or dampening, not both, and with a momentum above 0")
        if self.optimizer == "rprop" and self.local_lr_schedule is not None:
            raise ValueError("local_lr_schedule: rprop reads a learning rate at its first step alone; leave the schedule out")
        return self

    @property
    def options(self) -> OptimiserOptions:
        """The optimiser's options, with torch's defaults for those that are not set."""
        return optimiser_options(self.optimizer, self.optimizer_options)

    @property
    def heavy_ball(self) -> bool:
        """Whether steps are those of SGD with at most heavy-ball momentum."""
        return self.options == SGD()

    @property
    def carries_steps(self) -> bool:
        """Whether what a client's optimiser does depends on the client's earlier rounds."""
        return self.keep_optimizer and (self.optimizer != "sgd" or self.momentum > 0)


class EvalConfig(Section):
    """When and how accuracy is measured."""

    every: PositiveInt = Field(1, description="rounds between evaluations; each of the last `last` rounds is evaluated, too")
    metric: str | None = Field(
        None,
        description="score by which summaries, comparisons, frontiers and plots rank: accuracy, balanced_accuracy, f1_macro, and "
        "for two classes roc_auc, average_precision, recall, brier, calibration_error; where labels are numbers rmse, mae, mse, "
        "r2; null: accuracy, or balanced_accuracy if one class has more than two thirds of the training labels; of numbers rmse",
    )
    last: PositiveInt = Field(10, description="number of last rounds over which the reported accuracy is averaged")
    state: Literal["global_encoder", "local_encoder"] = Field(
        "global_encoder",
        description="layered methods: test the new global encoder, or the client's own last one, with the client's head",
    )
    fresh_head: NonNegativeInt = Field(
        0,
        description="after the last round, test each client once more, after this many epochs of training a copy of its "
        "projector and head on the current encoder, instead of any fine-tuning: it shows the cost of old heads "
        "(`accuracy_fresh_head`)",
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
