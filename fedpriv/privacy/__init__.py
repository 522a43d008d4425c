"""Differential privacy: clipping and noise at client and sample level, and the ledger of the epsilon spent."""
