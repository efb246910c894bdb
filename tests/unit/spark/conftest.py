"""Lets these tests use the fake broker of the client tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
