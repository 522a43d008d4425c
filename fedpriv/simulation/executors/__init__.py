"""Executors of the clients' local updates: one after another, side by side, or in several processes."""
