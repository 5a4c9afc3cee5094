"""A model of your own: any `nn.Module` with `forward(x, edge_index)`, beside models that Graft has, or those of PyG."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

import graft


class TransformerNet(nn.Module):
    """Attention over neighbours, then a linear head; `graft run --models examples/own_model.py:TransformerNet`."""

    def __init__(self, features: int, classes: int, width: int = 32, dropout: float = 0.5) -> None:
        super().__init__()
        self.attention = TransformerConv(features, width // 4, heads=4)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        embedding = torch.relu(self.attention(x, edge_index))
        return embedding, self.head(self.dropout(embedding))  # logits alone would do, too


def main() -> None:
    torch.manual_seed(0)  # a module comes with its initial weights
    net = TransformerNet(features=64, classes=10)
    setting = dict(clients=4, partition="random", split="5/20/75", rounds=10, seed=0)

    averaged = graft.run("fedavg", "digits", models=net, **setting)
    print(f"fedavg, everybody has the module: test accuracy {100 * averaged.accuracy['test']:.1f} %")

    # PyG's models need no class of yours.
    stock = graft.run("fedavg", "digits", models="pyg:GraphSAGE", **setting)
    print(f"fedavg, everybody has PyG's GraphSAGE: test accuracy {100 * stock.accuracy['test']:.1f} %")

    # Client k gets entry k modulo their number. Such models cannot be averaged, so a small one travels between them.
    heterogeneous = graft.run("fedgkc", "digits", models=[net, "gcn", "sage"], **setting)
    for client in heterogeneous.summary["per_client"]:
        print(f"fedgkc, client {client['client']} has {client['model']}: {100 * client['test']:.1f} %")

    # The weights of client 0, to load into a module of your own.
    net.load_state_dict(
        {path.replace("/", "."): leaf for path, leaf in graft.flatten(heterogeneous.clients[0]["model"])}
    )
    print(f"client 0 keeps {sum(weight.numel() for weight in net.parameters())} weights")


if __name__ == "__main__":
    main()
