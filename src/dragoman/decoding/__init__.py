"""Search as a pure function of a step. Dimensions are named as in `dragoman.model`; R is the beam (rows of one sentence)."""
