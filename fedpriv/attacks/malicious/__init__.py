"""Attacks by a malicious server, which alters the weights that it sends so that the answer reveals more."""
