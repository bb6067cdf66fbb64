"""Weights that stay: preload daemons, their fingerprints, what a start will find and why not."""
