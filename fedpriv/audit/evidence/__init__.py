"""The attacker's view of a run: its messages as observations, and the server's own shadow turns."""
