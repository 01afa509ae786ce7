"""Modules of a server process. A process that imports them once and has no threads is forked for each server process.

So the processes share the memory of the modules, most of which is PyTorch's. The models are loaded after the fork, because
packing starts threads, which do not survive a fork.
"""

import gc

import dragoman.inference.translator
import dragoman.serving.server  # noqa: F401

gc.collect()
gc.freeze()  # a collection would write to the pages of all objects, and so copy them
