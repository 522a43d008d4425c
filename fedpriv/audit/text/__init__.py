"""Texts behind a run's messages: targets, attempts, figures and results."""
