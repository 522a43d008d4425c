"""Tables of samples from files, folders and the hub: which columns they have, and images decoded."""
