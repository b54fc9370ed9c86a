"""Groups that hand in together, and what else stands in an instructor's way: a second instructor, a gradebook that cannot be read."""

import contextlib
import sqlite3

import pytest
from test_collect import LABS, NAME, collect, made, placed, released, rows
from test_collect_systems import WHERE, found

from grader.classroom import people, summary
from grader.classroom.store import Store
from grader.frontends import cli
from grader.frontends.collect import numbers

# Moodle 4, mod/assign/classes/downloader.php: a group's name and number, once, and no number where students are in no group. Its
# worksheet (mod/assign/gradingtable.php) has a column Group then
WORKSHEET = """Identifier,Full name,Email address,Status,Group,Grade,Maximum Grade,Last modified (submission),Last modified (grade)
Participant 17,Jane Doe,jane@x.org,Submitted,Gruppe Ä/1,,50.00,"Monday, 30 November 2026, 5:00 PM",-
Participant 18,Zoë Müller,zoe@x.org,Submitted,Gruppe Ä/1,,50.00,"Monday, 30 November 2026, 5:00 PM",-
Participant 19,Bo Li,bo@x.org,Submitted,Default group,,50.00,"Monday, 30 November 2026, 6:00 PM",-
Participant 20,O'Brien Ann,ann@x.org,Submitted,O_Team,,50.00,-,-
"""


def test_a_group_of_moodle_hands_in_for_each_member(tmp_path, capsys):
    """Its number, 20, is not that of participant 20."""
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(WORKSHEET, encoding="utf-8")
    files = {
        f"Gruppe Ä1_20{WHERE[:-1]}/2a.ipynb": released(says="group"),
        f"Default group{WHERE[:-1]}/2a.ipynb": released(says="others"),
        f"O Team_17{WHERE[:-1]}/2a.ipynb": released(says="alone"),
    }
    status, out, _ = collect(tmp_path, made(tmp_path / "m.zip", files), "--students", sheet, capsys=capsys)
    assert found(tmp_path) == {"jane": "group", "zoe": "group", "bo": "others", "ann": "alone"} and status == 0
    assert "4 notebooks of 4 students" in out
    assert all((placed(tmp_path, who).parent / "timestamp.txt").exists() == (who != "ann") for who in found(tmp_path))
    assert {student: n for (student, _), n in numbers(tmp_path / "submitted", "moodle").items()} == {
        "jane": "17",
        "zoe": "18",
        "bo": "19",
        "ann": "20",
    }
    _, out, err = collect(tmp_path, tmp_path / "m.zip", "--students", sheet, capsys=capsys)
    assert out.count("unchanged") == 4 and "two folders" not in err


def test_without_the_worksheet_a_group_is_one_student(tmp_path, capsys):
    files = {f"Gruppe A_20{WHERE[:-1]}/2a.ipynb": released(), f"Default group{WHERE}/2a.ipynb": released()}
    collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert found(tmp_path).keys() == {"Gruppe_A", "Default_group"}


def test_a_group_of_canvas_hands_in_for_each_member(tmp_path, capsys):
    """lib/content_zipper.rb packs it once, under the group's name and one member's number. Groups are exported by
    app/controllers/group_categories_controller.rb. Who handed in alone as well has the own one."""
    (tmp_path / "groups.csv").write_text(
        "name,canvas_user_id,user_id,login_id,sections,group_name,canvas_group_id\n"
        "Jane Doe,901,s1,jd1,A,Team 1,5\nZoë Müller,902,s2,zm2,A,Team 1,5\nBo Li,903,s3,bl3,A,Team 1,5\nDi,904,s4,di4,A,,\n",
        encoding="utf-8",
    )
    files = {
        "team1_901_77_2a.ipynb": released(says="team"),
        "libo_903_78_2a.ipynb": released(says="own"),
        "di_904_79_2a.ipynb": released(says="di"),
    }
    collect(tmp_path, made(tmp_path / "c.zip", files), "--students", tmp_path / "groups.csv", capsys=capsys)
    assert found(tmp_path) == {"jd1": "team", "zm2": "team", "bl3": "own", "di4": "di"}


@pytest.mark.parametrize("named", [True, False])
def test_a_worksheet_without_ids_says_when_somebody_handed_in(tmp_path, capsys, named):
    """mod/assign/gradingtable.php: no name while students are anonymous, and no address where a site hides it."""
    head = ["Identifier", *["Full name"] * named, "Status", "Grade", "Maximum Grade", "Last modified (submission)"]
    body = [
        f'Participant {n},{"Jane Doe," * named}Submitted,,50.00,"Monday, 30 November 2026, {n}:00 PM"' for n in (7, 8)
    ]
    (tmp_path / "sheet.csv").write_text("\n".join([",".join(head), *body]))
    name = "Jane Doe" if named else "Participant"
    files = {f"{name}_{n}{WHERE}/2a.ipynb": released(says=f"{n}") for n in (7, 8)}
    archive = made(tmp_path / "m.zip", files)
    status, _, err = collect(tmp_path, archive, "--students", tmp_path / "sheet.csv", capsys=capsys)
    folder = name.replace(" ", "_")
    assert status == 0 and found(tmp_path) == {f"{folder}_7": "7", f"{folder}_8": "8"} and "without a time" not in err
    clocks = [(placed(tmp_path, f"{folder}_{n}").parent / "timestamp.txt").read_text() for n in (7, 8)]
    assert clocks[0] < clocks[1] and all(
        clock.startswith("2026-11-30") or clock.startswith("2026-12") for clock in clocks
    )
    assert set(numbers(tmp_path / "submitted", "moodle").values()) == {"7", "8"}


def test_folders_of_moodle_without_a_file_are_named(tmp_path, capsys):
    _, _, err = collect(tmp_path, made(tmp_path / "m.zip", {f"Ann_1{WHERE}/": b""}), capsys=capsys)
    assert "Ann: the folder is empty" in err


def test_two_who_collect_at_once_lose_nothing(tmp_path, capsys):
    """The list of who is who is written anew by each."""
    archive = made(tmp_path / "m.zip", {f"Ann_1{WHERE}/2a.ipynb": released()})
    with Store(tmp_path / "submitted").locked():
        status, _, err = collect(tmp_path, archive, capsys=capsys)
    assert status == 2 and "`grader class collect`" in err and "Wait for it" in err and not found(tmp_path)
    assert collect(tmp_path, archive, capsys=capsys)[0] == 0
    assert len(rows(tmp_path / "submitted" / "collected.csv")) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["collect", "marks"])
def test_a_gradebook_that_another_program_uses(tmp_path, capsys, gradebook, monkeypatch, command):
    monkeypatch.setattr(people, "PATIENCE_S", 0.01)
    archive = made(tmp_path / "m.zip", {f"Ann_1{WHERE}/2a.ipynb": released()})
    arguments = [str(archive), "--to"] if command == "collect" else [str(LABS)]
    (tmp_path / "submitted" / "ann" / NAME).mkdir(parents=True)
    (tmp_path / "submitted" / "ann" / NAME / f"{NAME}.ipynb").write_bytes(released())
    with contextlib.closing(sqlite3.connect(tmp_path / "gradebook.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert cli.main(["class", command, *arguments, str(tmp_path / "submitted")]) == 2
    err = capsys.readouterr().err
    assert "gradebook.db" in err and "locked" in err and "Traceback" not in err and len(err.splitlines()) == 1
    (tmp_path / "gradebook.db").write_bytes(b"no database" * 100)
    assert cli.main(["class", command, *arguments, str(tmp_path / "submitted")]) == 2
    err = capsys.readouterr().err
    assert "file is not a database" in err and "Traceback" not in err
    (line,) = summary.stale(tmp_path / "gradebook.db", [])  # the rest of a class's summary is not lost
    assert "file is not a database" in line
