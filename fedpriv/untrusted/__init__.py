"""What comes from outside, read so that it can do no harm: YAML documents, addresses with secrets, names that are shown."""
