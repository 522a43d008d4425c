"""Texts behind a run's messages: what is attacked, what attackers read, and what may be said of it."""
