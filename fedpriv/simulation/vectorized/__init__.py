"""Several clients as one net: who asks for what, and how it is done for all of them at once."""
