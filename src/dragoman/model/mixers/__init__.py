"""Layers in the place of self-attention: recurrent, convolutional and dilated ones, and the stacks that hold them."""
