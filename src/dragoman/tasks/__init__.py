"""The one room where translation and parsing differ."""
