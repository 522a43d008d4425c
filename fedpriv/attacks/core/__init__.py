"""Observations, reconstructions, and the registry of attacks with their options."""
