"""Serving of bundles by deployments of Ray Serve."""
