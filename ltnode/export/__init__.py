"""Trained models as files that run without ltnode: ONNX and torch.export.

Read in this order: ``program`` (what is exported), ``adaptive`` (its loop of adaptive steps), ``onnx_format`` and
``torch_format`` (the files), ``verification`` (the file beside the library), ``api`` (all of it in one call).
"""

from ltnode.export.api import Exported, export_model
from ltnode.export.verification import Agreement, ExportError

__all__ = ["Agreement", "ExportError", "Exported", "export_model"]
