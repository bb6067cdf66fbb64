"""The Textual app and the command line: thin, no decisions."""
