"""Graphs, datasets, partitions and splits: how one graph becomes a federation."""
