"""Secure aggregation: the server learns the sum of the clients' uploads, but no single upload."""
