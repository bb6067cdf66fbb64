"""The state directory: records, units and runs, locks, events. The file system is the database."""
