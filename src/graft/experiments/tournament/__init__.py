"""A tournament: every method of a family gets the same search, and all are compared on seeds that none has seen."""
