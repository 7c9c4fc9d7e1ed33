"""Work for many processes and machines: trials, sweeps and batch prediction, on this machine or on a Ray cluster.

`executor` is the interface of an engine and `local` and `on_ray` are the two engines; a further engine is one more file.
"""
