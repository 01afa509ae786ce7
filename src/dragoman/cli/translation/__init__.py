"""Commands that translate, serve and score translations."""
