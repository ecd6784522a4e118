import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "measure"))  # for the planted techniques
