"""Membership and label inference: candidates, scores, epsilon, and the conclusions."""
