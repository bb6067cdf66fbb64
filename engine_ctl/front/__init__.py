"""A port that does not move: a small proxy before an engine that holds requests during a swap."""
