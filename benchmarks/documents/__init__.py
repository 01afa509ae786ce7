"""Documents benchmark: files of other projects, damaged files, tags, guards, and the cost of reading and writing."""
