"""Inputs of a model before its encoder are sound files as samples and features; front ends share one interface. No PyTorch."""
