"""Loaded by every Python of a watched command: its folder stands first on PYTHONPATH. It waits for `import torch` and imports
nothing of the job's itself. A `sitecustomize` of the machine's own is run as ever."""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class _After:
    """A finder that changes nothing, but knows when the import of some modules is done."""

    def __init__(self, done):
        self.done = done  # by name: called with the module

    def find_spec(self, name, path=None, target=None):
        if name not in self.done:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next((found for finder in others if (found := _found(finder, name, path))), None)
        if hasattr(spec and spec.loader, "exec_module"):
            with contextlib.suppress(AttributeError, TypeError):  # a loader that takes no attribute
                self._tell_when_done(spec.loader, name)
        return spec

    def _tell_when_done(self, loader, name):
        """Some only look whether there is such a module, and never import what they found."""
        if "exec_module" in vars(loader):
            return
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            done = self.done.pop(name, None)
            if not self.done and self in sys.meta_path:
                sys.meta_path.remove(self)
            if done is not None:
                _without_harm(done, module)

        loader.exec_module = exec_module


def _found(finder, name, path):
    return finder.find_spec(name, path) if hasattr(finder, "find_spec") else None


def _without_harm(call, module):
    """Whatever fails here must not reach the job."""
    try:
        sys.path.insert(0, HERE)
        try:
            call(module)
        finally:
            sys.path.remove(HERE)
    except Exception as error:
        _tell_why_not(f"{type(error).__name__}: {error}", module)
        if os.environ.get("GRADER_WATCH_DEBUG"):
            raise


def _tell_why_not(why, module):
    """A PyTorch that is too old or too new, say: the report names it."""
    import json

    with contextlib.suppress(Exception):
        folder = json.loads(os.environ["GRADER_WATCH"])["folder"]
        with open(os.path.join(folder, f"failed-{os.getpid()}"), "w", encoding="utf-8") as file:
            file.write(f"{module.__name__} {getattr(module, '__version__', '')}: {why}")


def _begin(torch):
    import grader_watch

    grader_watch.begin(os.environ["GRADER_WATCH"])


def _saves(function):
    """A function that writes checkpoints, beside torch.save."""

    def done(module):
        import grader_watch_patches

        grader_watch_patches.saves(module, function)

    return done


def _own_sitecustomize():
    """The next one on the path, as if this one were not there."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("GRADER_WATCH"):
    seen = {
        "torch": _begin,
        "safetensors.torch": _saves("save_file"),
        "torch.distributed.checkpoint.state_dict_saver": _saves("save"),
    }
    if "torch" in sys.modules:  # a .pth file may import it, before this runs
        _without_harm(seen.pop("torch"), sys.modules["torch"])
    sys.meta_path.insert(0, _After(seen))
_own_sitecustomize()
