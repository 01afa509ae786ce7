"""Decoder that predicts all tokens at once, trained by connectionist temporal classification (Libovický and Helcl 2018).

Purpose: a comparison with shallow decoders for fast translation.
Measured: 18.4 BLEU, where a shallow decoder has 25.0 after the same time. In int8 it is 1.3 to 1.8 times as fast as a
decoder of one layer for one sentence, and 0.7 to 0.8 times for 32 (docs/how-to/other-architectures.md).
May go: at any time; a shallow decoder is the better answer.
"""
