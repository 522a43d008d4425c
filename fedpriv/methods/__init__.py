"""The methods; one paper a file. ``register`` makes a class known by name."""

from fedpriv.methods.registry import find_method, methods, register, with_options

__all__ = ["find_method", "methods", "register", "with_options"]
