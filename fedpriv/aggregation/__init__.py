"""How the server merges: pure functions on the K x p matrix of a round's uploads."""
