"""Augmentation of whole batches on their device."""
