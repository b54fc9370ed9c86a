import shutil
import tempfile
from pathlib import Path

import pytest
import scripts

TOGETHER = {  # the tests of each of these files share a costly fixture
    "test_browser", "test_class", "test_data", "test_diagnose", "test_explorer_browser",
    "test_nbgrader", "test_nightly", "test_notebook", "test_parity", "test_phase4_board", "test_pool",
}  # fmt: skip


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
def alembic(monkeypatch):
    """For a test that makes a gradebook: nbgrader starts alembic then, and looks for it on the PATH only."""
    monkeypatch.setenv("PATH", scripts.environment()["PATH"])


@pytest.fixture
def nothing_left(own_temporary):
    """The test leaves no process and no folder of the sandbox behind."""
    from helpers import eventually, inhabitants, workspaces

    yield
    assert eventually(lambda: not inhabitants(own_temporary)), inhabitants(own_temporary)
    assert not workspaces()
