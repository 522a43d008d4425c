"""A run whose clients are on other machines: the same two halves, joined by Flower.

``frames`` to ``serving`` know no network: they carry sealed messages over any :class:`~fedpriv.deploy.remote_clients.Grid`. Only
``flower`` and ``bundle`` import Flower.
"""
