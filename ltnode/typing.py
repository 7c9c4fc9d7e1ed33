"""Type annotations with shapes and dtypes.

The test suite checks annotations such as ``Float[Tensor, "S B *rest"]`` at run time (jaxtyping and beartype). jaxtyping is a
development dependency; without it these annotations are equivalent to ``Tensor``.
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
