"""Executors of the clients' turns: one after another, side by side, or in several processes."""
