"""The demo: the four models on one-dimensional data with a gap, as a table, a figure and a page."""
