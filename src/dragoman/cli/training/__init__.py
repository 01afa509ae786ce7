"""Commands that prepare corpora and train."""
