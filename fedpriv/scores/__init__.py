"""The scores of a model's predictions: which there are, and how they are computed, alike for every client and for the server."""
