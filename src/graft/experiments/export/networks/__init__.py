"""Graft's architectures as plain PyTorch and PyG modules: a file of these is what an exported model.py is a copy of."""
