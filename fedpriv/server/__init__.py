"""The server half of a run: the loop over its rounds, client selection, the merge, checkpoints, and the folder of a run.

It knows nothing of how a client trains, and reaches clients through :mod:`fedpriv.server.clients` alone.
"""
