"""Pictures of runs: learning curves, accuracy and gains by client, the confusion matrix."""

from fedpriv.plots.curves import compare_curves, learning_curve, per_client_score
from fedpriv.plots.gains import client_gains
from fedpriv.plots.style import BLUE, ORANGE, PALETTE, save

__all__ = ["BLUE", "ORANGE", "PALETTE", "client_gains", "compare_curves", "learning_curve", "per_client_score", "save"]
