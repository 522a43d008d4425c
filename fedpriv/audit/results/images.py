"""Results of attacks on images, and what class centres and running statistics give away of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import Rate, counts
from fedpriv.audit.results.outcome import Outcome, Sender, Target


@dataclass(frozen=True)
class RecoveryRate:
    """How many images were recovered; ``limit``: the threshold of the mean squared error, such as ``0.01``."""

    rate: Rate
    limit: str


@dataclass(frozen=True, kw_only=True)
class ImageFigures:
    """The figures of an attack on images; thresholds of the mean squared error are keys such as ``0.01``.

    Attributes:
        success: threshold -> rate of images with a smaller error.
        public_successes: threshold -> how many the nearest public image would recover; ``None``: the attacker knows none.
        label_accuracy: ``None``: it guesses no labels.
        psnr_median_db: ``None``: infinite, as images are exact.
        lpips_missing, feature_distance_missing: why there is no such figure.
        curve: (step, median loss over the messages).
    """

    success: Mapping[str, Rate]
    public_successes: Mapping[str, int] | None
    label_accuracy: float | None
    mse_median: float
    mse_best: float
    psnr_median_db: float | None
    ssim_median: float
    lpips_median: float | None
    lpips_missing: str | None
    feature_distance_median: float | None
    feature_distance_missing: str | None
    cpu_seconds: float
    images_per_cpu_second: float | None
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageOutcome(Outcome):
    """An attack on images.

    Attributes:
        figures: ``None``: it was not run.
        cut: why it was not tried on further images.
    """

    figures: ImageFigures | None = None
    cut: Reason | None = None


@dataclass(frozen=True)
class Baseline:
    """A guess made without the message; ``success``: threshold -> rate of images that it recovers."""

    mse_median: float
    success: Mapping[str, Rate]


@dataclass(frozen=True, kw_only=True)
class ImageTarget(Target):
    """Attacked images.

    Attributes:
        baselines: by name.
        note: of image-text pairs, what the attacker knows of the texts.
        picture: file name of the reconstructions; ``picture_note``: which ones it shows.
    """

    outcomes: tuple[ImageOutcome, ...]
    baselines: Mapping[str, Baseline]
    note: str | None = None
    picture: str | None = None
    picture_note: str | None = None

    @property
    def baseline_successes(self) -> Mapping[str, Mapping[str, int]]:
        """Baseline -> threshold -> number of images that it recovers."""
        return {name: counts(baseline.success) for name, baseline in self.baselines.items()}


@dataclass(frozen=True, kw_only=True)
class CenterOutcome:
    """Images recovered from the class centres of a message. There is no control, so that a failure is no evidence.

    Attributes:
        classes: whose centres were sent; ``samples_per_class``: how many samples of each the client has.
        mse_median: median error of the recovered image to the mean image of its class; ``baseline_mse_median``: the same error of
            the mean of public images.
        success: threshold -> rate of centres that gave an image away; ``public_successes``: threshold -> how many guesses would.
        recovered: the rate at the loosest threshold at which it exceeds that of guesses; 0 where there is none.
        distance_of_truth, distance_of_recovered: from an embedding to the centre, as a share of its squared length; ``None``:
            not finite.
    """

    round: int
    sender: Sender
    classes: tuple[int, ...]
    samples_per_class: tuple[int, ...]
    mse_median: float
    baseline_mse_median: float
    success: Mapping[str, Rate]
    public_successes: Mapping[str, int]
    recovered: RecoveryRate
    distance_of_truth: float | None
    distance_of_recovered: float | None
    picture: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeanColour:
    """The mean colour of a client's images, estimated from running statistics, in [0, 1] by channel; errors are means."""

    round: int
    sender: Sender
    estimate: tuple[float, ...]
    true: tuple[float, ...]
    error: float
    baseline_error: float
