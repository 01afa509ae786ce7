"""Parsing: trees, the parser, and scores of trees. Nothing outside of it knows what a tree is."""
