"""DFed-SST: peers that choose whom to learn from by how their classes lie."""
