"""Partitions: how samples are dealt to the clients, the file of a partition and its picture."""
