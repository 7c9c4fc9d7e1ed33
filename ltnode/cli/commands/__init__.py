"""The commands: each module has a function of its name and EXAMPLES for the help page, or a function ``register``."""
