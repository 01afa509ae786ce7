"""Reading and writing of parallel corpora: text, TSV, CSV, JSON lines, TMX, XLIFF, PO, SGM, Parquet and bracketed trees."""
