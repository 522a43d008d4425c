"""Several clients as one net: their requests, and how these are computed in batches."""
