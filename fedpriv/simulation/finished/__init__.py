"""What a finished run is given: its results, its exported model, and the probe of its encoder."""
