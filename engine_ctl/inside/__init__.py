"""Scripts that run under a runtime's own interpreter. Nothing here is imported by Stoker itself."""
