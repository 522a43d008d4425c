"""Attacks that reconstruct images."""
