"""Leakage experiments: cells (victim, defence, attacker) on the same images, and the cost of each defence in accuracy."""

from fedpriv.experiments.leakage.result import CellResult
from fedpriv.experiments.leakage.runner import run_cells
from fedpriv.experiments.leakage.spec import Leakage, describes_cells, read_leakage

__all__ = ["CellResult", "Leakage", "describes_cells", "read_leakage", "run_cells"]
