"""The use of a run's final model: restored from the run's folder, applied to new samples, and exported."""
