"""Transcription: recordings to text with times, by models whose encoder reads log-mel features."""
