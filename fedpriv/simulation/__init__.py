"""The only round loop, and what it needs: clients' turns, private state, checkpoints."""
