"""Data sets, partitions over clients, augmentation, and the tensors a run trains on."""
