"""One file per command. A file offers ``register(app)``, which adds its command; nothing else needs to know of it."""
