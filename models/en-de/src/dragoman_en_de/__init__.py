"""Bundle `en-de` of dragoman: English to German for software, documentation and everyday sentences."""
