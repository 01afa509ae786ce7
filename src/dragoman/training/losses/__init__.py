"""Loss functions of training."""
