"""The client's half of a round: one client's model, its teachers, and its turn of local training.

It knows one client and what it was sent, nothing of the server and nothing of the other clients.
"""
