"""Predictions as CUDA graphs: `captured` decides and refines, `graphs` keeps the graphs of a model, `single_pass` records one.

The reference is `FamiliarModel.predict`; `ltnode.models.execution` is where both meet.
"""
