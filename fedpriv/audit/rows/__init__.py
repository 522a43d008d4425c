"""Rows of a table behind a run's messages: targets, figures, results, and hidden values of single columns."""
