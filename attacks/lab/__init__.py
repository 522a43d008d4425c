"""Attacks under laboratory conditions: reference victims, images, and the controls that run with every attack."""
