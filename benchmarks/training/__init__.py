"""How fast dragoman trains beside its peers, and beside what the machine can do: `make bench-training`."""
