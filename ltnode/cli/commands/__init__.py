"""The commands; each module has a function ``register`` that adds its command to the application."""
