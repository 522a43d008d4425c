"""Attacks that reconstruct text, from the words that occur to whole sentences, and their controls."""
