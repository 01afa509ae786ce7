"""Pairs of sentences from files and back again, one file a format; nothing here knows what a token is."""
