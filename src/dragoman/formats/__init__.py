"""Reading and writing of parallel corpora: plain text, TSV, JSON lines, TMX, XLIFF, PO, SGM, Parquet and bracketed trees."""
