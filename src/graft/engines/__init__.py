"""Where clients live. The same method runs on every engine."""
