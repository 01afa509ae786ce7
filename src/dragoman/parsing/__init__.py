"""Parsing: trees, the parser, and scores of trees."""
