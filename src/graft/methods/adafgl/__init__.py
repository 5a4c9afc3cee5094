"""AdaFGL."""

from graft.methods.adafgl.method import AdaFGL

__all__ = ["AdaFGL"]
