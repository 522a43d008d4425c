"""How good what an attack found is, and what guesses score that never saw a message."""
