"""The command line. What needs PyTorch is imported inside the commands, so that help and mistakes answer at once."""

from graft.cli.main import app, main

__all__ = ["app", "main"]
