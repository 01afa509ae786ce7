"""Commands for bundles and this machine."""
