"""Stand-ins for tests. Never used by the product."""
