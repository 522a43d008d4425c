"""Stored fingerprints of short runs: what a change of the code's structure must leave as it is, bit for bit."""
