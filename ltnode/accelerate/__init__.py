"""Everything that makes the models of `ltnode.models` fast on CUDA; importing it installs the faster execution as the default."""

from ltnode.accelerate.execution import FusedSolves
from ltnode.models.execution import set_default

set_default(FusedSolves())
