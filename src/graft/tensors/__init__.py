"""Tensors and trees of them: arithmetic, block-diagonal sparse matrices, kernels and hashed random numbers."""
