"""Who runs the clients' turns of a round: one after another, side by side, in several processes."""
