"""Commands about trees."""
