"""Conclusions of an audit, in sentences. The strongest is "not reconstructed by attack X within its budget"."""
