"""How a run is scored: the papers' protocols over all clients, and the linear probe of an encoder."""
