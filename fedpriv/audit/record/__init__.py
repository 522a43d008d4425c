"""The attacker's view of a run: its messages as observations, and shadow local updates simulated by the server."""
