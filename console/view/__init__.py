"""Pure view state: snapshots and answers in, rows of styled spans out. No Textual, no I/O."""
