"""Translation beside CTranslate2, Hugging Face's generate and the machine's own limits."""
