"""Differential privacy: what is bounded and noised at which level, and one ledger of what it spends."""
