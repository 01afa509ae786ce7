"""Text without a model: sentences, placeholders, and markup inside sentences."""
