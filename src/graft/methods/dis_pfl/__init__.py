"""Dis-PFL: peers with sparse models and masks of their own."""

from graft.methods.dis_pfl.method import DisPFL

__all__ = ["DisPFL"]
