import random
import secrets
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import scripts
import torch
from hypothesis.internal.conjecture import providers

from grader import calibrate, grade
from grader.kinds import annotate, kernel, stopwatch
from grader.own import compare

TOGETHER = {  # the tests of each of these files share a costly fixture
    "test_browser", "test_class", "test_class_odd", "test_data", "test_diagnose", "test_explanations", "test_explorer_browser", "test_nbgrader",
    "test_nightly", "test_notebook", "test_parity", "test_phase4_board", "test_pool", "test_run_against", "test_site", "test_wheel",
}  # fmt: skip

hypothesis.settings.register_profile(
    "the same everywhere", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("the same everywhere")
# Constants of all modules that happen to be loaded would be among the values: others in each order of tests, and after each edit
providers._get_local_constants = lambda: providers._local_constants
SEEDS = random.Random()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Whatever a test draws, or a grade in its process, is the same in every run."""
    for generator in (SEEDS, random):
        generator.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def seeds_are_not_drawn():
    """Those of grades; users and keys of the sandbox, which two test processes must not share, still are."""
    for module in (annotate, calibrate, compare, grade, kernel, stopwatch):
        module.secrets = SimpleNamespace(**vars(secrets) | {"randbelow": SEEDS.randrange})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One test process gets all tests of such a file; all other tests are dealt out one by one. (`--dist loadgroup` would do, but
    xdist 3.8 does not see its groups under pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if Path(file).stem in TOGETHER else nodeid

    return Together(config, log)


@pytest.fixture(scope="session")
def own_temporary():
    """A temporary folder of this test run's own: what is left in it was left by this run. Its path is short, for the
    sockets of loader workers, and open to all, since children run as another user."""
    folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    folder.chmod(0o755)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def open_folder(tmp_path):
    """A folder of this test's that another user reaches, and may write to: pytest's own above it are closed to others."""
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def alembic(monkeypatch):
    """For a test that makes a gradebook: nbgrader starts alembic then, and looks for it on the PATH only."""
    monkeypatch.setenv("PATH", scripts.environment()["PATH"])


@pytest.fixture(scope="session")
def made_gradebook(tmp_path_factory):
    """An empty one. To make it takes five seconds, which go to the start of alembic."""
    from nbgrader.api import Gradebook

    path = tmp_path_factory.mktemp("gradebook") / "gradebook.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", scripts.environment()["PATH"])
        with Gradebook(f"sqlite:///{path}"):
            pass
    return path


@pytest.fixture
def gradebook(made_gradebook, tmp_path):
    """The address of an empty gradebook, tmp_path/gradebook.db."""
    return f"sqlite:///{shutil.copy(made_gradebook, tmp_path)}"


@pytest.fixture
def nothing_left(own_temporary):
    """The test leaves no process and no folder of the sandbox behind."""
    from helpers import eventually, inhabitants, workspaces

    yield
    assert eventually(lambda: not inhabitants(own_temporary)), inhabitants(own_temporary)
    assert eventually(lambda: not workspaces()), workspaces()
