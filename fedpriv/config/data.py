"""The clients' data, and how they are partitioned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from fedpriv.config.sections import Section

Corruption = Literal["labels", "sign", "scale", "noise"]
LabelKind = Literal["classification", "regression"]
"""What labels are: classes, or numbers."""


class PartitionConfig(Section):
    """The partition of the data over the clients (``fedpriv data show`` draws it)."""

    name: str = Field(
        "classes", description="how the samples are partitioned among the clients; `fedpriv data list` names the partitions"
    )
    classes_per_client: PositiveInt = Field(2, description="S of the partitions `classes` and `class_subsets`")
    alpha: PositiveFloat = Field(0.5, description="concentration of the Dirichlet partitions")
    distinct: bool = Field(True, description="`classes`: no client gets the same class twice (false: the published sampler)")
    shards_per_client: PositiveInt = Field(2, description="shards per client of the partition `shards`")
    capacity: bool = Field(
        True, description="`dirichlet`: a client with more than an equal share of the samples gets none of the next class (MOON)"
    )
    min_samples: NonNegativeInt = Field(
        0, description="`dirichlet`: redraw until every client holds at least this many training samples"
    )
    size_mean: float = Field(4.0, description="mu of the log-normal sizes of the partition `lognormal`")
    size_sigma: NonNegativeFloat = Field(1.0, description="sigma of the log-normal sizes")
    size_offset: NonNegativeInt = Field(50, description="added to each log-normal size")
    reuse: bool = Field(False, description="`lognormal`: let clients hold the same image, as the published FEMNIST sampler does")
    column: str | None = Field(
        None, description="`by_column`: column of a table whose values are the clients, such as hospital; not used as a feature"
    )
    test: Literal["disjoint", "all_of_class", "auto"] = Field(
        "auto",
        description="local test sets. disjoint: disjoint shares; all_of_class: all test images of the client's classes, "
        "weighted; auto: disjoint, or all_of_class where a share would be under 20 images",
    )
    seed: NonNegativeInt | None = Field(None, description="seed of the partition; null: the run's seed")


class DataConfig(Section):
    """The clients' data."""

    name: str = Field(
        "digits",
        description="a data set's name, hf:owner/name[:config][@revision] of the Hugging Face hub, or the path of an image "
        "folder, a CSV or parquet file, a folder of these, or a folder with one for each client",
    )
    dir: Path | None = Field(None, description="folder that holds <name>/{train,test}.parquet; null: FEDPRIV_DATA, then the hub")
    limit: PositiveInt | None = Field(
        None, description="training samples kept, a fixed stratified choice; null: all. Test samples are not affected"
    )
    test_limit: PositiveInt | None = Field(None, description="test samples kept, chosen as by `limit`; null: all")
    label: str | None = Field(
        None, description="column of the labels, in files and data sets of the hub; null: found by its type or a common name"
    )
    task: LabelKind | None = Field(
        None,
        description="what the labels of a table are: classes, or numbers to be predicted (squared error); null: numbers if there "
        "are more than 20 different ones, unless these number classes: the whole numbers from 0 or 1 on without a gap",
    )
    features: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="columns to use of a table of numbers and categories; also dates, and numbers that differ in each row, "
        "can be named; null: all but these and texts",
    )
    drop: tuple[str, ...] = Field((), description="columns of a table that are not used")
    min_level: PositiveInt = Field(
        5,
        description="a client names a level of a category in a table only if so many of its training rows have it; all others "
        "are read as one",
    )
    bounds: Mapping[str, tuple[float, float]] = Field(
        {}, description="least and greatest number of columns of a table, such as {age: [0, 120]}; needed under DP"
    )
    levels: Mapping[str, tuple[str, ...]] = Field(
        {},
        description="levels of columns of a table, such as {sex: [female, male]}, which no client then names; needed under DP",
    )
    clients: PositiveInt = Field(
        20, description="number of registered clients; follows from the data if these are partitioned already"
    )
    partition: PartitionConfig = PartitionConfig()
    image_size: PositiveInt | None = Field(
        None, le=4096, description="side in pixels to which images are resized; null: as they are, or as the data set suggests"
    )
    pixels: Literal["standardised", "unit", "raw"] = Field(
        "standardised",
        description="pixel values that the net gets: standardised by the data set's mean and standard deviation, in [0, 1], or "
        "in [0, 255] as in FedDUAL's code",
    )
    max_tokens: int | None = Field(
        None,
        ge=4,
        description="tokens to which a text is truncated, special ones included; null: as the data set suggests, else 128",
    )
    image_only: float = Field(0.0, ge=0, le=1, description="image-text pairs: share of the clients that have no texts")
    text_only: float = Field(0.0, ge=0, le=1, description="image-text pairs: share of the clients that have no images")
    corrupt_clients: float = Field(
        0.0, ge=0, le=1, description="share of the clients that are bad, to test how robust an aggregation is"
    )
    corruption: Corruption = Field(
        "labels",
        description="what bad clients do. labels: train on flipped labels (class c as C - 1 - c); sign: send their update "
        "with the other sign; scale: send it ten times as large; noise: send it with noise of ten times its root mean "
        "square",
    )
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of each client's training data held out for choosing options"
    )
    augment: (
        Literal["none", "crop_flip", "reflect_crop_flip", "crop_flip_rotate", "flip_jitter_rotate", "simclr", "simclr_sharp"]
        | None
    ) = Field(
        None,
        description="augmentation drawn for each sample of a batch. crop_flip: pad by 4, crop at random, and flip left to "
        "right; reflect_crop_flip: the same, padded by mirroring (MOON, CIFAR-10); crop_flip_rotate: crop_flip, and a "
        "rotation of up to 15 degrees (MOON, CIFAR-100); flip_jitter_rotate: flip, colours, and a rotation of up to 10 "
        "degrees (SimProx, pairs); simclr: the views of SimCLR as L-DAWA has them; simclr_sharp: these without blur; "
        "null: as the objective suggests, else none",
    )

    @field_validator("levels", mode="before")
    @classmethod
    def _levels_are_texts(cls, value: Any) -> Any:
        """Levels that are written as numbers, as in ``{smoker: [0, 1]}``, as a cell has them."""
        if not isinstance(value, Mapping):
            return value
        texts = {
            name: [str(level) for level in levels] if isinstance(levels, list | tuple) else levels
            for name, levels in value.items()
        }
        for name, levels in texts.items():
            if isinstance(levels, list) and (not levels or len(set(levels)) < len(levels)):
                raise ValueError(f"{name}: at least one level, each once")
        return texts

    @field_validator("bounds")
    @classmethod
    def _bounds_are_a_range(cls, value: Mapping[str, tuple[float, float]]) -> Mapping[str, tuple[float, float]]:
        for name, (least, most) in value.items():
            if not least < most:
                raise ValueError(f"{name}: [{least:g}, {most:g}] is no range; the least number, then the greatest")
        return value
