"""Process groups, parallel wrappers, launching and signals."""
