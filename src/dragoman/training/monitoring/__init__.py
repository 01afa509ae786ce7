"""Metrics log, callbacks, trackers, throughput, diagnostics and the dashboard of a run."""
