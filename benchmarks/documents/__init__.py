"""Documents benchmark: files of other projects, damaged files, tags, and the cost of reading and writing."""
