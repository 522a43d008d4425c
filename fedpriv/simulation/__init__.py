"""A federation in one process: the only round loop, what runs the clients' turns, and the evaluation that sees all of them."""
