"""EVALB: labeled brackets of parse trees, scored against gold trees."""
