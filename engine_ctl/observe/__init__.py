"""One `Snapshot` a second out of run directories, logs, /metrics, NVML and the host."""
