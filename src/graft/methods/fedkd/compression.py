"""Compression of FedKD's updates by truncated singular value decompositions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graft.tensors.trees import Tree, Weights, count_bytes, map_tree


def compress_leaf(leaf: Tensor, energy: float) -> Tensor | Tree:
    """Returns a matrix as its factors, where these are smaller; anything else as it is."""
    if leaf.dim() != 2 or min(leaf.shape) == 1:
        return leaf
    parts = factors(leaf, energy)
    return parts if count_bytes(parts) < leaf.nbytes else leaf


def factors(matrix: Tensor, energy: float) -> Tree:
    """Returns the fewest singular values, with their vectors, that hold this share of the sum of their squares.

    They come from the eigenvalues of the smaller Gram matrix: a tenth of the time of a singular value decomposition,
    and in double precision exact enough for factors in single. On the CPU, since GPUs are slow at small ones.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    tall = (matrix.T if wide else matrix).double()
    squares, vectors = torch.linalg.eigh((tall.T @ tall).cpu())
    squares, vectors = squares.flip(0).clamp(min=0), vectors.flip(1)
    sums = squares.cumsum(0)
    # If all are needed then all are kept; the references keep none and so send zeros.
    rank = int((sums < energy * sums[-1]).sum()) + 1 if sums[-1] > 0 else 0
    singular, right = squares[:rank].sqrt().to(matrix.device), vectors[:, :rank].to(matrix.device)
    left = tall @ right / singular
    if wide:
        left, right = right, left
    return Tree(left=left.to(matrix), singular=singular.to(matrix), right=right.T.to(matrix).contiguous())


def rebuild(part: Any) -> Any:
    """Returns a matrix from its factors; anything else as it came."""
    return (part["left"] * part["singular"]) @ part["right"] if isinstance(part, dict) else part


def rebuild_update(update: Weights, like: Weights) -> Tree:
    """Returns an update rebuilt from what was sent, in the structure of the mentee."""
    return map_tree(lambda _, part: rebuild(part), like, update)


def apply_update(mentee: Weights, update: Weights) -> Tree:
    """Returns the mentee after an update as it was sent."""
    return map_tree(lambda leaf, part: leaf + rebuild(part), mentee, update)
