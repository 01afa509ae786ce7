"""Pictures out: a sentence in, a picture out, one token a pixel (section 7 of the paper).

Purpose: restricted self-attention over long outputs, with the ordinary model, training and sampling.
Measured: bits for each pixel, time and memory, and the digits that others would read (docs/how-to/sound-and-pictures.md).
May go: when a picture or a sound that a model writes has a corpus and a page of its own.
"""
