"""The suites are a package beside the sources."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
