"""A graph of your own, as a PyG `Data`: shared out among five clients, trained together and alone."""

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric.data import Data
from torch_geometric.utils import from_scipy_sparse_matrix

import graft


def make_data() -> Data:
    """Images of digits, each joined to the four that look most alike."""
    images, digits = load_digits(return_X_y=True)
    alike = kneighbors_graph(images, 4, metric="cosine")
    return Data(
        x=torch.tensor(images / 16, dtype=torch.float32),
        edge_index=from_scipy_sparse_matrix(alike)[0],  # made symmetric by Graft; self-loops and duplicates go
        y=torch.tensor(digits),  # -1 would be a node without a label
    )


def main() -> None:
    data = make_data()
    # The masks of your data are used with split="own"; otherwise every client's nodes are split by these percentages.
    setting = dict(clients=5, partition="random", split="5/20/75", rounds=10, seed=0)
    together = graft.run("fedavg", data, **setting)
    alone = graft.run("local", data, **setting)

    print(f"{data.num_nodes} nodes, {len(together.clients)} clients")
    for mine, theirs in zip(together.summary["per_client"], alone.summary["per_client"], strict=True):
        print(
            f"client {mine['client']}: {mine['nodes']} nodes, test accuracy "
            f"{100 * mine['test']:.1f} % together, {100 * theirs['test']:.1f} % alone"
        )
    print(f"mean: {100 * together.accuracy['test']:.1f} % together, {100 * alone.accuracy['test']:.1f} % alone")


if __name__ == "__main__":
    main()
