"""From ``package.module:app`` to the App that it names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from cortex_plane.kernel.errors import SetupError
from cortex_plane.worker.tools.app import App

_OURS = str(Path(__file__).parent)


def load_app(reference: str) -> App:
    """Import it, from the current directory too. The author's code runs here, so every failure is told with its line."""
    module_name, _, attribute = reference.partition(":")
    if not (_is_dotted(module_name) and _is_dotted(attribute)):
        raise _not_loadable(
            reference,
            "it does not have the form `package.module:app`.",
            "Write the module as in `import`, without `.py`, then a colon and the name of the App in it.",
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(reference, module_name)
    return _app_in(module, reference, attribute)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _imported(reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise _not_loadable(
                reference,
                f"there is no module `{missing}`.",
                f"Start from the directory that contains it (this is `{Path.cwd()}`), or install its package here.",
            ) from error
        raise _not_loadable(
            reference,
            f"importing `{name}` failed with {type(error).__name__}: {error}{_place(error)}",
            "Correct the module; `python -c 'import …'` shows the whole traceback.",
        ) from error


def _app_in(module: ModuleType, reference: str, attribute: str) -> App:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _not_loadable(reference, f"`{module.__name__}` has no `{attribute}`.", _hint(module))
        found = getattr(found, part)
    if not isinstance(found, App):
        raise _not_loadable(reference, f"it is a {type(found).__name__}, not an App.", _hint(module))
    return found


def _hint(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return "The module has " + ", ".join(f"`{module.__name__}:{name}`" for name in apps) + "."
    return 'Write `app = App("…")` at the top level of the module.'


def _place(error: BaseException) -> str:
    """The innermost line that is neither the import machinery's nor ours: there the author can do something."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<frozen importlib"))
        and "importlib" not in Path(frame.filename).parts
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _not_loadable(reference: str, reason: str, hint: str) -> SetupError:
    return SetupError(f"The app `{reference}` cannot be loaded: {reason}", code="app_not_loadable", hint=hint)
