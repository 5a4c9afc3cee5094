"""FedSage+: graphs mended with generated neighbours."""
