"""Pictures of a run: learning curves, accuracy by client, the confusion matrix."""

from fedpriv.plots.curves import BLUE, ORANGE, PALETTE, compare_curves, learning_curve, per_client_accuracy, save

__all__ = ["BLUE", "ORANGE", "PALETTE", "compare_curves", "learning_curve", "per_client_accuracy", "save"]
