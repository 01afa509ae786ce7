"""Training speed beside other toolkits: `make bench-training`."""
