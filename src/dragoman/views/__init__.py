"""Pictures from plain numbers."""
