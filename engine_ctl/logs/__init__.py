"""What a log says: records, phases, verdicts, kernels, causes."""
