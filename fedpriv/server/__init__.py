"""The server's half of a round: client selection, the merge, checkpoints, the folder of a run and the payloads kept in it.

It knows nothing of how a client trains. The loop is in :mod:`fedpriv.simulation.loop`.
"""
