"""The private graphs of a fleet on a device."""
