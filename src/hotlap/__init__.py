"""hotlap: runs the PyTorch training script you already have faster, and proves it is still the same training."""

__version__ = "0.1.0"
