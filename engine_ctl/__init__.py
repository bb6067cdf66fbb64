"""Stoker's headless core: supervision, observation and decisions. Never imports the console."""
