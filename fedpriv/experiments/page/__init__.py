"""The comparison with the paper as Markdown and pictures: the report of a folder or of an experiment."""
