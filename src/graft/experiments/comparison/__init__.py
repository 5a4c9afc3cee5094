"""Finished runs side by side: which of them may be averaged, and what can be said of their differences."""
