"""Models that can be used without Graft."""
