"""The image experiments: a grid of runs that are trained, evaluated and recorded."""
