"""The Python interface, for scripts and notebooks: what the commands do, as functions and objects (``import fedpriv``)."""
