"""Changes to a running engine that need no restart: LoRA adapters, prefix cache, sleep and wake."""
