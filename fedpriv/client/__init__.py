"""The client half of a round: one client's data and private state, its model, and its local update of local training.

It knows one client and what it was sent, nothing of the server and nothing of the other clients.
"""
