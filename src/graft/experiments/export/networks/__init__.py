"""Graft's architectures as plain PyTorch and PyG modules: what an exported model.py is made of."""
