"""Events, metrics log, loggers, throughput, diagnostics and dashboard of a run."""
