"""HTTP server: the APIs of LibreTranslate and DeepL, an API of our own, and a page to translate in."""
