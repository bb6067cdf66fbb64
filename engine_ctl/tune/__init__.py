"""Measuring engines: bench, sweep, compare, history."""
