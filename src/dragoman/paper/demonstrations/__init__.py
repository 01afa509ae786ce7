"""Small demonstrations of the paper's text, each of under two minutes on one core, with a table and a picture."""
