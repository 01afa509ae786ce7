"""Tensors in, tensors out: the encoder-decoder Transformer.

Dimensions, as suffixes of tensor names in this room and in `decoding`:

    B sentences    N rows of the decoder (B, or B times the beam)    S source length    T target length
    D d_model      H heads    K a head's key width    U a head's value width    V vocabulary
"""
