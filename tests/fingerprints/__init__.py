"""Stored fingerprints of short runs, which refactoring must not change by a bit."""
