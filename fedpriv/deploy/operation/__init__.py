"""What an operator sees and sets of a deployment. It knows nothing of the network."""
