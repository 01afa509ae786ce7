"""Files in, files out: each format finds the spans of its texts in the original bytes, and translations are put into them."""
