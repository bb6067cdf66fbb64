"""Replacing a unit's engine: forecast, swap with rollback, resuming what was interrupted."""
