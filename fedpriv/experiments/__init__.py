"""Experiments, one YAML per table or figure of a paper: the runs, the results as data, the comparison with the paper."""

from fedpriv.experiments.leakage import describes_cells, read_leakage, run_cells
from fedpriv.experiments.page.render import report
from fedpriv.experiments.reproduction import reproduce
from fedpriv.experiments.results import Result
from fedpriv.experiments.runner import run
from fedpriv.experiments.spec import Experiment, read

__all__ = ["Experiment", "Result", "describes_cells", "read", "read_leakage", "report", "reproduce", "run", "run_cells"]
