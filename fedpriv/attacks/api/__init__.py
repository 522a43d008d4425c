"""The attacks in Python: on the gradient of any net, without a run (``from fedpriv.attacks import invert``)."""
