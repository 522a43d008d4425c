"""The audit of a record of a federation that ran elsewhere (:mod:`fedpriv.recorder`)."""
