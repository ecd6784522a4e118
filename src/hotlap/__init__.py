"""hotlap: runs the PyTorch training script you already have faster, and proves it is still the same training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotlap.applying import applied

__all__ = ["__version__", "applied"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Only who asks for it loads the catalogue: every process of hotlap's imports this file."""
    if name == "applied":
        from hotlap.applying import applied

        return applied
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
