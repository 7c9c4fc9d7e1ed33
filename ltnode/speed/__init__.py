"""``ltnode bench``: the cost of a training step and of a prediction on this machine, with peers in the same run.

``subject`` is what is measured (a model of `ltnode.build`, or a field of the user's), ``measure`` measures it in every way.
"""

from ltnode.speed.measure import Settings, Timing, measure, record, why_not_faster
from ltnode.speed.subject import Subject, named_model, own_field

__all__ = ["Settings", "Subject", "Timing", "measure", "named_model", "own_field", "record", "why_not_faster"]
