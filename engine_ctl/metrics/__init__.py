"""/metrics of an engine: text to typed samples, windows over time, hints in plain words."""
