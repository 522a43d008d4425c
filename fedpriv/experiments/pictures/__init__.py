"""Figures that need a net and its data, not only results: the loss around a minimum, and the norms of gradients by tensor."""
