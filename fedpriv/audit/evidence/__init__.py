"""What an attacker gets of a run: its messages as observations, and what the server can play itself."""
