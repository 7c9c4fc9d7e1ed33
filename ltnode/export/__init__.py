"""Trained models as files that run without ltnode: ONNX and torch.export.

Read in this order: ``api`` (the entry point), ``program`` (the module that is exported), ``adaptive`` (its loop of adaptive
steps), ``onnx_format`` and ``torch_format`` (the files), ``verification`` (comparison with the library), ``metadata``.
"""

from ltnode.export.api import Exported, export_model
from ltnode.export.verification import Agreement, ExportError

__all__ = ["Agreement", "ExportError", "Exported", "export_model"]
