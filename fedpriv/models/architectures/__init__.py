"""Encoders of images and tables; each file registers its nets by name with :func:`fedpriv.models.register_model`."""
