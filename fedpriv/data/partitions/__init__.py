"""Partitions: how samples are divided among the clients, the file of a partition and its picture."""
