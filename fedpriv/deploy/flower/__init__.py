"""The network: Flower's SuperLink, SuperNodes and apps around the frames of :mod:`fedpriv.deploy`, and the files they need."""
