"""Toy federations are too small for threads: on a busy machine they only wait for each other."""

import torch

torch.set_num_threads(1)
