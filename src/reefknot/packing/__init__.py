"""A state from a checkpoint, without training."""
