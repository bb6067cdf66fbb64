"""GPUs through NVML, the host, and who holds their memory."""
