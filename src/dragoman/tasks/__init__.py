"""Translation and parsing: the code in which the two tasks differ."""
