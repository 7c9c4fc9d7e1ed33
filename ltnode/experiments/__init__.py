"""Experiments: the demo, and the paper's experiments at its own settings. They train, measure, write files; they do not print."""
