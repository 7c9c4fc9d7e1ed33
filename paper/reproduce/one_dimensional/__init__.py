"""The paper's regression experiment on one-dimensional data with a gap, and the selection of its end-time."""
