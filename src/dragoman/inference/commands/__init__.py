"""Commands that need a trained model."""
