"""Minimising many independent objectives at once: L-BFGS, Adam, restarts."""
