"""Supervision: the shim, launching, liveness, the stop ladder, adoption, reaping.

The shim imports from here under `python -I -S`: keep this file free of imports."""
