"""Several clients' models as one net: each client's code makes requests, which are computed in batches."""
