"""Search algorithms as pure functions of a decoding step.

Dimension suffixes are those of `dragoman.model`; R counts the hypotheses in the beam of one sentence.
"""
