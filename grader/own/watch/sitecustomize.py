"""Loaded by every Python of a watched command: its folder stands first on PYTHONPATH. It waits for `import torch` and imports
nothing of the job's itself. A `sitecustomize` of the machine's own is run as ever."""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """A finder that changes nothing, but knows when `import torch` is done."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = next((found for finder in sys.meta_path if (found := _found(finder, name))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _tell_when_done(spec.loader)
        return spec


def _found(finder, name):
    return finder.find_spec(name, None) if hasattr(finder, "find_spec") else None


def _tell_when_done(loader):
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        execute(module)
        _begin()

    loader.exec_module = exec_module


def _begin():
    """Whatever fails here must not reach the job."""
    try:
        sys.path.insert(0, HERE)
        try:
            import grader_watch

            grader_watch.begin(os.environ["GRADER_WATCH"])
        finally:
            sys.path.remove(HERE)
    except Exception:
        if os.environ.get("GRADER_WATCH_DEBUG"):
            raise


def _own_sitecustomize():
    """The next one on the path, as if this one were not there."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("GRADER_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
_own_sitecustomize()
