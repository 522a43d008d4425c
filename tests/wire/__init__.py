"""Messages: what is refused, and what every method sends."""
