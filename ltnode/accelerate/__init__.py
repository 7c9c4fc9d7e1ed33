"""Everything that makes the models of `ltnode.models` fast, on CUDA and, for small tables, on CPUs.

Importing this package installs a faster execution of the models as the default.

Read in this order: ``plan`` (what can be accelerated, and why not), ``execution`` and ``solve`` (faster layers and solves),
``step`` (the fastest training step), ``graph_step``, ``solve_pass``, ``grid_policy`` and ``drawn_times`` (a captured step with a
solve), ``phases_step`` (one without), ``recorder`` and ``flat_sgd`` (what both need), ``joint_batches`` (predictions),
``joint_solve`` and ``joint_fields`` (ensembles). ``stacked`` stands by itself: training steps for tables on a CPU.
"""

from ltnode.accelerate.execution import FusedSolves
from ltnode.models.execution import set_default

set_default(FusedSolves())
