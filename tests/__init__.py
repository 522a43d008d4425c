"""The settings of all tests, made before torch is imported: no hub, one thread, stored bytecode."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise every process that a test starts compiles torch's sources, for 4 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
