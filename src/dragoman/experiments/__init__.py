"""Ideas that are tried beside the paper's Transformer, one folder each.

An experiment imports the core; the core never imports an experiment. It attaches by the hooks of `dragoman.hooks`, as a package
of your own would. The docstring of each folder says what it is for, what was measured, and when it may go.
"""
