"""The choice of the executor of a run, and of its workers, by what a round costs."""
