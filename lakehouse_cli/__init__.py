"""The `lakehouse` command: thin, one file per group of subcommands."""
