"""Makes ``made_results`` importable, whatever import mode pytest uses; runs draw no plots."""

import sys
from pathlib import Path

from tests.simulation.conftest import quick_plots

__all__ = ["quick_plots"]

sys.path.insert(0, str(Path(__file__).parent))
