"""Inference of labels and of membership, and lower bounds on epsilon from membership inference."""
