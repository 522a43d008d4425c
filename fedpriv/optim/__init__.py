"""The clients' optimisers and learning rates, computed by torch's own classes."""
