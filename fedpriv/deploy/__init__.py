"""Runs with clients on other machines.

Only ``flower`` knows the network: the other modules exchange sealed messages over any
:class:`~fedpriv.deploy.remote_clients.Grid`.
"""
