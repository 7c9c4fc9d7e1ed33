"""Training steps of several small networks for vectors at once, on a CPU.

The networks have the same architecture and get the same rows, so that their layers are batched products of stacked weights. The
gradient is written by hand, and the arrays are those of numpy: a step consists of some 150 calls on small arrays, of which numpy
needs a third of the time of torch.

Read in this order: ``step`` (one step), ``parameters`` (the stacked weights), ``trajectory`` (stem, solve and head, forward and
backward), ``time_weights`` (grid and end-times of a step), ``posterior`` and ``likelihood`` (the loss), ``adam`` (the update),
``average`` (averaged weights).
"""
