"""Front ends: a source that is an array, such as a sound or a picture, in the place of text (section 7 of the paper).

Purpose: the same encoder, decoder, training and search for other inputs than text.
Measured: spoken digits of people that are not in the training data (docs/how-to/sound-and-pictures.md).
May go: when corpora of the core hold arrays; here an array is written as text, one printable character a number.
"""
