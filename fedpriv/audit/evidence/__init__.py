"""The attacker's view of a run: its messages as observations, and shadow turns simulated by the server."""
