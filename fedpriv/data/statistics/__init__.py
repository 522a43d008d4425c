"""Statistics of the clients' training rows, by which a table or images are scaled and coded: each client's part, and the whole."""
