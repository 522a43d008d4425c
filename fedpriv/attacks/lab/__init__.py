"""Reference victims, images to attack, and the controls that run with every attack."""
