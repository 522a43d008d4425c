"""Scores of reconstructions, and of guesses made without a message."""
