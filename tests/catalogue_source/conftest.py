import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the loops beside the tests
