"""The one training loop, its optimisers and losses."""
