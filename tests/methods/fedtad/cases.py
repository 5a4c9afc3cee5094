"""Cases that the tests of FedTAD share: small graphs, lessons and students."""

import numpy as np
import torch

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.federation.clients import Clients
from graft.federation.server import Server
from graft.methods.fedtad import FedTAD
from graft.methods.fedtad.generator import Generator, pseudo_labels
from graft.methods.fedtad.lesson import Students, SyntheticLesson, teacher_votes
from graft.tensors.randomness import streams
from graft.tensors.trees import flatten, stack
from graft.training.optimizers import start_adam
from tests.toy import CLASSES, toy_setup

CPU = torch.device("cpu")


def path_graph(labels=(0, 0, 1), train=(True, True, True), edges=((0, 1), (1, 2)), x=((1, 0), (1, 0), (0, 1))):
    masks = {"train": np.array(train), "validation": ~np.array(train), "test": ~np.array(train)}
    pairs = np.array(edges).T if edges else np.empty((2, 0), int)
    return make_graph("path", np.array(x, float), pairs, np.array(labels), 2, masks)


def reported_by(graphs, round=1, **settings):
    """What clients report of themselves."""
    setup = toy_setup(FedTAD(**settings), graphs=graphs)
    engine = InProcess(setup)
    return Clients(engine, round, list(range(len(graphs)))).ask(setup.method.tell_reliability)


def server_for(setup):
    """A server in its first round."""
    server = Server.of(setup)
    server.begin(1)
    return server


def generator_weights():
    return stack([Generator(6, CLASSES, 32).start(torch.Generator().manual_seed(0))])


def lesson_for(model, teachers, method, norm=2.0):
    count = len(teachers["head"]["bias"])
    reliability = torch.rand(count, CLASSES, generator=torch.Generator().manual_seed(1)) + 0.1
    labels = pseudo_labels(reliability.sum(0) > 0, method.pseudo_nodes)
    votes = teacher_votes(reliability, torch.ones(1, count), labels)
    return SyntheticLesson(model, teachers, votes, votes[0], labels, torch.tensor(norm))


def students_for(weights, owners=(0,)):
    return Students(weights, start_adam(dict(flatten(weights))), streams(CPU, 0, list(owners)))


def noise_for(nodes):
    return torch.randn(nodes, 32, generator=torch.Generator().manual_seed(0))
