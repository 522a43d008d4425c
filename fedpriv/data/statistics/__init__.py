"""Statistics of the clients' training rows, by which tables and images are scaled and coded."""
