"""Where what was trained meets what can be learned from it: the data to attack, and how the outcome is shown."""
