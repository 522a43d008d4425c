"""Attacks that reconstruct rows of a table."""
