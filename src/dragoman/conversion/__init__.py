"""Conversion of models from other toolkits into bundles."""
