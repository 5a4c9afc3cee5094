"""Graph isomorphism network (Xu et al., ICLR 2019) without normalisation, for nodes."""

from graft.experiments.export.networks.gin import GIN


class PlainGIN(GIN):
    """A GIN whose settings say `normalise=False`."""
