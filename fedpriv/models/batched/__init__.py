"""K nets of one architecture as a single net, so that several clients train in one forward and backward pass."""
