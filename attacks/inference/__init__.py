"""Attacks that name labels or members instead of reconstructing samples, and what they say of epsilon."""
