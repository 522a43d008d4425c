"""What outcomes show: whether they are conclusive, the answer of a run, and the measures that conditions are on."""
