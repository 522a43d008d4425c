"""The classes of a client: as its message states them, and as shares of a gradient."""
