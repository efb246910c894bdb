"""Libraries that come with the extra ``pipeline``, imported when they are needed."""

import importlib
from typing import Any

from millstream.errors import Unavailable, how_to_install


def need_extra(module: str, what: str) -> Any:
    """The module.

    Raises:
        Unavailable: it is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise Unavailable(
            f"{what} need the package {package}, which is not installed ({error}): {how_to_install('pipeline')}"
        ) from error
