"""Quality benchmark: the gain of each option on a small corpus, alone and combined."""
