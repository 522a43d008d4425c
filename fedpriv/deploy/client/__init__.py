"""A client on its own machine: its data, what it requires, and its part in runs. It knows nothing of the network."""
