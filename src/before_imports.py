"""Lines of both built files that run before their imports.

The folder of the program is the first in which Python looks for modules. So a file of the owner
that is called csv.py or email.py would hide Python's module, here and in what we import later.
Python 3.6 must be able to read these lines.
"""
import os
import sys


def put_behind_python(folder: str) -> None:
    """Have Python look for modules in this folder after its own, and before installed packages."""
    library = os.path.dirname(os.__file__)
    others = [one for one in sys.path if os.path.realpath(one or ".") != folder]
    end = max([place for place, one in enumerate(others, 1)
               if one.startswith(library) and "-packages" not in one] or [0])
    if len(others) < len(sys.path):
        sys.path[:] = others[:end] + [folder] + others[end:]


put_behind_python(os.path.dirname(os.path.realpath(__file__)))
