"""Experiments: one YAML per table or figure of a paper; its runs, their results as data, and the comparison with the paper."""

from fedpriv.experiments.render import report
from fedpriv.experiments.results import Result
from fedpriv.experiments.runner import run
from fedpriv.experiments.spec import Experiment, read

__all__ = ["Experiment", "Result", "read", "report", "run"]
