"""The paper's claims, our evidence for each of them, and the verdict of one judge.

Read in this order: ``claim`` (what the paper says), ``evidence`` (what we measured), ``verdict``, ``judge`` (the rules),
``significance`` (a test beside them), then the claims themselves: ``generalisation``, ``shift``, ``foreign``, ``variants``,
``one_dimensional``, ``motivating`` and the question that users ask, ``users``. ``all_claims`` puts them together.
"""
