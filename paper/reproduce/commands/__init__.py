"""The subcommands of ``ltnode reproduce``, one per file."""
