"""Federated learning whose accuracy, cost and privacy leakage are measured on the same run."""
