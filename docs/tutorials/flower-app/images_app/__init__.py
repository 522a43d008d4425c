"""Handwritten digits, learned with Flower and PyTorch."""
