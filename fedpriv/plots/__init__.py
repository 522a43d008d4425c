"""Pictures of runs: learning curves, accuracy and gains by client, the confusion matrix."""

from fedpriv.plots.curves import BLUE, ORANGE, PALETTE, compare_curves, learning_curve, per_client_score, save
from fedpriv.plots.gains import client_gains

__all__ = ["BLUE", "ORANGE", "PALETTE", "client_gains", "compare_curves", "learning_curve", "per_client_score", "save"]
