"""vLLM installations: found, made, verified, remembered."""
