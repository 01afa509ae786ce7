"""Quality, measured: what each switch is worth on a small corpus, alone and together."""
