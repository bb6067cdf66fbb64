"""One module per family of sub-commands: parse, call engine_ctl, print."""
