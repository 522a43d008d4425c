"""Makes ``made_results`` importable, whatever import mode pytest uses."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
