"""What people show each other: the picture of a grade, and the board of those who agreed."""

import resource

import pytest
from PIL import Image
from test_marks import course  # noqa: F401  (a fixture)
from test_report import samples

import grader
from grader.errors import UserError
from grader.frontends import attempts, cli, share
from grader.paths import REPOSITORY


@pytest.mark.parametrize("name", sorted(samples()))
def test_a_grade_as_a_picture(name, tmp_path):
    result, path = samples()[name], tmp_path / "share.png"
    if result.fatal or result.disturbed or not result.measured_max:
        with pytest.raises(UserError, match="nothing to show"):
            share.save(result, path)
        assert not path.exists()
        return
    said = share.save(result, path)
    with Image.open(path) as picture:
        assert picture.size == (1200, 630) and picture.info["Description"] == said
        assert len(picture.convert("L").getcolors()) > 20, "it is drawn"
        edge = picture.convert("L").crop((1192, 0, 1200, 630))
        assert edge.getextrema() == (255, 255), "no word is cut off at the right"
    assert "\x1b" not in said and ("quick look" in said) == result.quick


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path):
    path, limits = tmp_path / "share.png", resource.getrlimit(resource.RLIMIT_FSIZE)
    result = next(r for r in samples().values() if r.measured_max and not r.fatal and not r.disturbed)
    path.write_bytes(b"the last one")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError):
            share.save(result, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"the last one" and list(tmp_path.iterdir()) == [path]


def test_a_lab_shares_its_last_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab = grader.lab("1c_diagnose")
    lab.share()
    assert "Run lab.check() first" in capsys.readouterr().out
    found = next(r for r in samples().values() if r.measured_max and not r.fatal and not r.disturbed)
    found.lab = "1c_diagnose"
    attempts.write_json(tmp_path / "report-1c_diagnose.json", found.to_dict())
    lab.share()
    assert (tmp_path / "share-1c_diagnose.png").exists() and "Saved as share-1c" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_a_board_has_only_those_who_agreed(course, capsys):  # noqa: F811
    agreed = course / "agreed.csv"
    agreed.write_text("student,name\nann,The <b>Fast</b>\ncyd,\nzoe,\n")
    labs = str(REPOSITORY / "labs")
    command = [
        "class",
        "board",
        labs,
        str(course / "submitted"),
        "--agreed",
        str(agreed),
        "--html",
        str(course / "board.html"),
    ]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert "The <b>Fast</b>" in said.out and "60 of 80" in said.out and "a CPU" in said.out
    assert "bob" not in said.out and "cyd" not in said.out
    assert "Handed nothing in: zoe\n" in said.err and "No full grade yet, so not on the board: cyd\n" in said.err
    html = (course / "board.html").read_text()
    assert "The &lt;b&gt;Fast" in html and "bob" not in html
    agreed.write_text("a\nann\n")
    assert cli.main(command) == 2 and "no column student" in capsys.readouterr().err


def test_a_lab_shows_its_last_report_again(tmp_path, monkeypatch, capsys):
    """A page that was loaded again, or a kernel that was restarted, does not cost the report."""
    monkeypatch.chdir(tmp_path)
    lab = grader.lab("1c_diagnose")
    lab.report()
    assert "Run lab.check() first" in capsys.readouterr().out
    found = next(r for r in samples().values() if r.measured_max and not r.fatal and not r.disturbed)
    found.lab = "1c_diagnose"
    attempts.write_json(tmp_path / "report-1c_diagnose.json", found.to_dict())
    lab.report()
    shown = capsys.readouterr().out
    assert found.checks[0].title in shown and f"From the report of {found.date}." in shown


def test_the_last_check_has_its_place_among_all():
    def tried(*gains, **more):
        common = {"lab": "2a_workers", "machine": "m", "form": "cpu", "counts": True, "gain_certain": 1.0} | more
        return [attempts.usable(common | {"gain": gain}) for gain in gains]

    assert attempts.rung(tried(2.0)) == attempts.rung([]) == ""
    assert attempts.rung(tried(2.0, 3.0)) == "This is check 2, and your fastest loop so far."
    assert "Your fastest loop so far was check 2, 3.00x" in attempts.rung(tried(2.0, 3.0, 2.5))
    assert attempts.rung(tried(2.0) + tried(3.0, counts=False)) == "", "a gain that does not count has no place"
    assert attempts.rung(tried(2.0, machine="another") + tried(3.0)) == "", "gains of two machines are not compared"
