"""Attacks on what crosses the wire. This package knows tensors and functions, and nothing of :mod:`fedpriv`."""
