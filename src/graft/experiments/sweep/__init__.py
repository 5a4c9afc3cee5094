"""Experiments that are varied over methods, data, settings and seeds, and run together."""
