"""What keys and commands call. Every function is blocking and raises StokerError."""
