"""Translation and parsing with trained bundles."""
