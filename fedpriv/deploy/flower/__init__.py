"""The network of a deployment: Flower's SuperLink, SuperNodes and apps, which carry the frames, and the files that they need."""
