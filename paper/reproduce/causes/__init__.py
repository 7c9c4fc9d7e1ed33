"""Why numbers differ from the paper's: hypotheses, the runs that test them, and what these say.

``causes.toml`` in the folder ``paper`` names the hypotheses, ``cause`` reads it, ``numbers`` looks up what the runs measured, and
``outcome`` compares: the same rule for every hypothesis, fixed before the runs.
"""
