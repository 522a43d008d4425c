"""Data as people have them: clients that come with the data, rows of numbers, data sets of the hub, Python objects."""
