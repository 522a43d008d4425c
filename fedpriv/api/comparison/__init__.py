"""Runs side by side: their figures, what tells them apart, groups of seeds, and gains over baselines."""
