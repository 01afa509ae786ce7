"""Atomic, checksummed storage and safetensors files."""
