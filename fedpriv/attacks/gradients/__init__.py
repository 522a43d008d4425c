"""Gradients: closed forms for linear layers, weight changes as gradients of one step, and gradient matching."""
