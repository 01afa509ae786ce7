"""Tokenizers: SentencePiece models, their sampling, and linearized trees."""
