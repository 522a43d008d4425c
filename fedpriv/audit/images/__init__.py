"""Images behind a run's messages: what is attacked, what attackers reconstruct, and the figures."""
