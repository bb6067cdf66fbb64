"""Standbys: processes that have vLLM imported, answer questions and start engines by forking."""
