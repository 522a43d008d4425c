"""The folder of a run: its config, facts, records, checkpoints, kept payloads, and the lock of the process that plays it."""
