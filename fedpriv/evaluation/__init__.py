"""Evaluation of a run: the papers' protocols over all clients, and the linear probe of an encoder."""
