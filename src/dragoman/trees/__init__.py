"""Constituency trees as frozen values: read, write, linearise, mend, and what may follow in a linearization."""
