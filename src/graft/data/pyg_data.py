"""A graph in a PyG `Data`."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from graft.data.graphs import Features, Graph, make_graph
from graft.errors import InputError

PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


def from_pyg(data: Any, name: str = "pyg") -> Graph:
    """Returns the graph of a PyG `Data`; of masks with several columns, the first."""
    missing = [field for field in ("x", "edge_index", "y") if getattr(data, field, None) is None]
    if missing:
        raise InputError(f"The PyG Data lacks {' and '.join(missing)}: it needs x, edge_index and y.")
    masks = {mask: _first_column(data, attribute) for mask, attribute in PYG_MASKS.items()}
    return make_graph(name, _features_from_tensor(data.x), _array(data.edge_index), _array(data.y), masks=masks)


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _first_column(data: Any, attribute: str) -> Any:
    mask = getattr(data, attribute, None)
    if mask is None:
        return None
    return _array(mask) if mask.ndim == 1 else _array(mask)[:, 0]


def _features_from_tensor(x: Any) -> Features:
    import torch

    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return _array(x)
    cells = x.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
    return csr_array((cells.values().numpy(), tuple(cells.indices().numpy())), shape=tuple(cells.shape))
