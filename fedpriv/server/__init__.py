"""The server of a run: the loop over its rounds, client selection, checks of what arrives, and the merge.

It does not know how a client trains, and reaches clients only through :mod:`fedpriv.server.clients`.
"""
