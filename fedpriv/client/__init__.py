"""A client of a run: its data, its private state, its model, and its local update.

A client knows its own data and what it was sent, nothing else of the server, and nothing of other clients.
"""
