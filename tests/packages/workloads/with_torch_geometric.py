"""Graph neural networks of PyG."""

import torch
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    SAGEConv,
    TransformerConv,
    global_mean_pool,
)

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0], [1, 0, 2, 1, 4, 3, 0, 4]])
OTHER_EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


class Net(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def gcn(cache):
    model = cache(Net(GCNConv(4, 8), SAGEConv(8, 3)).eval())
    x = torch.randn(5, 4)
    return lambda: [model(x, EDGES), model(x[:4], OTHER_EDGES)]


def gcn_without_loops(cache):
    first = GCNConv(4, 8, add_self_loops=False, normalize=False)
    model = cache(Net(first, SAGEConv(8, 3, aggr="max")).eval())
    x = torch.randn(5, 4)
    return lambda: [model(x, EDGES), model(x[:4], OTHER_EDGES)]


def gat(cache):
    first = GATConv(4, 4, heads=2, add_self_loops=False)
    model = cache(Net(first, TransformerConv(8, 3)).eval())
    x = torch.randn(5, 4)
    return lambda: [model(x, EDGES), model(x * 2, EDGES)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = GINConv(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.out = nn.Linear(8, 2)

    def forward(self, x, edge_index, batch, graphs: int):
        return self.out(global_mean_pool(self.layer(x, edge_index), batch, size=graphs))


def graphs(cache):
    model = cache(Classifier().eval())
    x, batch = torch.randn(5, 4), torch.tensor([0, 0, 0, 1, 1])
    return lambda: [model(x, EDGES, batch, 2), model(x * 2, EDGES, batch, 2)]
