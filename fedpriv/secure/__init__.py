"""Secure aggregation: the server learns the sum of the clients' uploads, and no upload."""
