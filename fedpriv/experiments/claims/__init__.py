"""A paper's claims beside our numbers: what each is computed from, and the verdict."""

from fedpriv.experiments.claims.judging import Judgement, Results, judge
from fedpriv.experiments.claims.metrics import metric
from fedpriv.experiments.claims.rule import (
    INCONCLUSIVE,
    MIN_SEEDS,
    NOT_REPRODUCED,
    REPRODUCED,
    Verdict,
    decide,
)

__all__ = [
    "INCONCLUSIVE",
    "MIN_SEEDS",
    "NOT_REPRODUCED",
    "REPRODUCED",
    "Judgement",
    "Results",
    "Verdict",
    "decide",
    "judge",
    "metric",
]
