"""Models that other projects publish: their list, and how one of them becomes a bundle of this machine."""
