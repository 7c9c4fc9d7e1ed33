"""The fixture that the tests of exported files share."""

from small_exports import onnx_file

__all__ = ["onnx_file"]
