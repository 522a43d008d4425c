"""The simulation of a federation: the round loop, the executors of clients' local updates, and evaluation."""
