"""Shapes and dtypes as types.

Annotations such as ``Float[Tensor, "S B *rest"]`` are checked at run time in the test suite (jaxtyping + beartype).
jaxtyping is a development dependency: without it the same annotations mean a plain ``Tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Num, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, Num, UInt8
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item: Any) -> Any:
                return item[0]

        Bool = Float = Int = Num = UInt8 = _Unchecked

__all__ = ["Bool", "Float", "Int", "Num", "Tensor", "UInt8"]
