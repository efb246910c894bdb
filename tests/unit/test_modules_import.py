"""Every module of the product can be imported by itself.

A name that only the type checker imports, and that a class needs when it is made, is an error of the first import: no
type checker sees it, and no test if the only tests of the module are slow.
"""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, millstream
faults = []
for module in pkgutil.walk_packages(millstream.__path__, "millstream."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            faults.append(f"{module.name}: {error!r}")
print("\\n".join(faults))
"""


def test_every_module_can_be_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
