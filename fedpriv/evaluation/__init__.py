"""Evaluation of a run: the papers' protocols over all clients, and linear probes of an encoder."""
