"""What Moodle and Canvas pack, made as they make it, comes to the places where a class is graded."""

import csv
import io
import json
import os
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import scripts
from nbgrader.api import Gradebook

from grader.classroom.cells import as_released
from grader.classroom.submissions import misplaced, read_class
from grader.frontends import cli
from grader.submission import load_notebook
from tests.odd_class import packed

REPOSITORY = Path(__file__).resolve().parents[1]
LABS = REPOSITORY / "labs"
NAME, OTHER = "2a_workers", "1c_diagnose"
WHEN = (2026, 11, 20, 10, 30, 0)


def released(lab: str = NAME, says: str = "") -> bytes:
    notebook = json.loads((LABS / lab / f"{lab}.ipynb").read_text(encoding="utf-8"))
    if says:
        notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": says})
    return json.dumps(notebook, ensure_ascii=False).encode()


def made(path: Path, files: dict[str, bytes], when: tuple = WHEN, link: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, when)
            info.compress_type = zipfile.ZIP_DEFLATED
            if name == link:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, data)
    return path


def collect(root: Path, *arguments: str | Path, capsys) -> tuple[int, str, str]:
    status = cli.main(["class", "collect", *map(str, arguments), "--to", str(root / "submitted")])
    said = capsys.readouterr()
    return status, said.out, said.err


def placed(root: Path, student: str, lab: str = NAME) -> Path:
    return root / "submitted" / student / lab / f"{lab}.ipynb"


def stamp(when: tuple = WHEN) -> str:
    return f"{datetime(*when).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC\n"


def test_moodle(tmp_path, capsys):
    archive = made(
        tmp_path / "PERF-Lab 2a-4711.zip",
        {
            "Jane Doe_1000001_assignsubmission_file_/2a_workers (1).ipynb": released(says="jane"),
            "Zoë Müller_1000002_assignsubmission_file_/meine Lösung.ipynb": released(says="zoe"),
            "Zoë Müller_1000002_assignsubmission_onlinetext_/onlinetext.html": b"<p>see file</p>",
            "Bo_1000003_assignsubmission_file_lab2a.ipynb": released(says="bo"),  # without folders
            "Ann Lee_1000004_assignsubmission_file_/report.pdf": b"%PDF",
            "Cy_1000005_assignsubmission_file_/deep/er/2a_workers.ipynb": released(says="cy"),
            "Cy_1000005_assignsubmission_file_/__MACOSX/deep/._2a_workers.ipynb": b"\x00",
            "Cy_1000005_assignsubmission_file_/deep/.ipynb_checkpoints/2a_workers-checkpoint.ipynb": released(),
            "Di_1000006_assignsubmission_file_/both.ipynb": released(OTHER),
        },
    )
    status, out, err = collect(tmp_path, archive, capsys=capsys)
    assert status == 1 and "Ann Lee: no notebook" in err and "report.pdf" in err and err.count("\n") == 3
    assert "5 without a time" in err and "worksheet" in err
    for student, text in (("Jane_Doe", "jane"), ("Zoë_Müller", "zoe"), ("Bo", "bo"), ("Cy", "cy")):
        assert text in placed(tmp_path, student).read_text(encoding="utf-8")
        assert not (placed(tmp_path, student).parent / "timestamp.txt").exists(), "the archive's is the download's"
        assert f"{student}/{NAME}: new, from" in out
    assert placed(tmp_path, "Di", OTHER).exists(), "a notebook says itself which lab it is of"
    everyone = read_class(LABS, tmp_path / "submitted")
    assert len(everyone) == 5 and all(one.submission for one in everyone)
    assert not misplaced(tmp_path / "submitted")
    status, out, _ = collect(tmp_path, archive, "--lab", NAME, capsys=capsys)
    assert out.count("unchanged") == 4


def test_canvas(tmp_path, capsys):
    archive = made(
        tmp_path / "submissions.zip",
        {
            "doejane_12345_67890_2a_workers.ipynb": released(says="first"),
            "doejane_12345_67899_2a_workers-1.ipynb": released(says="second"),
            "müllerzoë_LATE_12346_67891_2a_workers-2.ipynb": released(says="zoe"),
            "liwei_12347_67892_work.zip": made(tmp_path / "w.zip", {"my/2a.ipynb": released(says="wei")}).read_bytes(),
        },
    )
    status, out, err = collect(tmp_path, archive, capsys=capsys)
    assert (status, err) == (0, "") and "67890" in out and "is newer" in out, "nobody has to do anything about it"
    for student, text in (("doejane_12345", "second"), ("müllerzoë_12346", "zoe"), ("liwei_12347", "wei")):
        assert text in placed(tmp_path, student).read_text(encoding="utf-8")
    assert ", late" in next(line for line in out.splitlines() if "müller" in line)


def test_students_get_the_ids_of_a_list(tmp_path, capsys):
    canvas = tmp_path / "gradebook.csv"
    canvas.write_text(
        '\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,2a_workers (99)\n"    Points Possible",,,,,50\n'
        '"Doe, Jane",12345,s1,jd1,A,\n"Doe, Jane",12399,s2,jd2,A,\n',
        encoding="utf-8",
    )
    files = {f"doejane_{n}_1_x.ipynb": released(says=str(n)) for n in (12345, 12399)}
    collect(tmp_path, made(tmp_path / "c.zip", files), "--students", canvas, capsys=capsys)
    assert "12345" in placed(tmp_path, "jd1").read_text() and "12399" in placed(tmp_path, "jd2").read_text()

    moodle = tmp_path / "worksheet.csv"
    moodle.write_text("Identifier,Full name,Username,Grade\nParticipant 7,Al Gray,ag1,\nParticipant 8,Al Gray,ag2,\n")
    files = {f"Al Gray_{n}_assignsubmission_file_/x.ipynb": released(says=f"al{n}") for n in (7, 8)}
    collect(tmp_path, made(tmp_path / "m.zip", files), "--students", moodle, capsys=capsys)
    assert "al7" in placed(tmp_path, "ag1").read_text() and "al8" in placed(tmp_path, "ag2").read_text()


def test_feedback_goes_back_to_whoever_handed_in(tmp_path, capsys):
    """Each page comes back under the number that the archive had."""
    moodle = {f"Al Gray_{n}_assignsubmission_file/x.ipynb": released(says=f"al{n}") for n in (7, 8)}
    inner = packed({"x.ipynb": released(OTHER)})
    canvas = {"doejane_LATE_12_60_2a.ipynb": released(OTHER), "leeann_13_61_w.zip": inner, "4_62_x.ipynb": inner[:9]}
    collect(tmp_path, made(tmp_path / "m.zip", moodle), made(tmp_path / "c.zip", canvas), capsys=capsys)
    for student, lab in (("Al_Gray_7", NAME), ("Al_Gray_8", NAME), ("doejane_12", OTHER), ("by_hand", NAME)):
        page = tmp_path / "feedback" / student / lab / f"{lab}.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"of {student}")
    status = cli.main(["class", "feedback", str(LABS), str(tmp_path / "submitted")])
    out, err = capsys.readouterr()
    assert status == 1 and "leeann_13, 1c_diagnose" in err and "generate_feedback" in err and out.count("For ") == 2
    assert f"give these pages back yourself: {tmp_path}/feedback/by_hand/{NAME}/{NAME}.html\n" in out

    def inside(name: str) -> dict[str, str]:
        with zipfile.ZipFile(tmp_path / "measured" / name) as archive:
            return {each: archive.read(each).decode() for each in archive.namelist()}

    assert inside(f"feedback-{NAME}-moodle.zip") == {
        f"Al Gray_{n}_assignfeedback_file/{NAME}.html": f"of Al_Gray_{n}" for n in (7, 8)
    }
    assert inside(f"feedback-{OTHER}-canvas.zip") == {f"doejane_LATE_12_60_{OTHER}.html": "of doejane_12"}
    assert cli.main(["class", "feedback", str(LABS), str(tmp_path / "nothing")]) == 2


def test_two_of_a_name_stay_two(tmp_path, capsys):
    files = {f"Al Gray_{n}_assignsubmission_file_/x.ipynb": released(says=f"al{n}") for n in (7, 8)}
    collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert "al7" in placed(tmp_path, "Al_Gray_7").read_text() and "al8" in placed(tmp_path, "Al_Gray_8").read_text()
    _, _, err = collect(tmp_path, tmp_path / "m.zip", capsys=capsys)
    assert "share a name" in err and "--students" in err and "Al_Gray_7" in err and "Al_Gray_8" in err


# The archive is what Moodle's zip_writer makes: each entry has the time of the download. Its worksheet has the other, as userdate()
# writes it for whoever exports it: https://github.com/moodle/moodle/blob/main/public/mod/assign/gradingtable.php
@pytest.mark.parametrize(
    ("head", "early", "late"),
    [
        (
            "Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (submission)",
            "Thursday, 19 November 2026, 5:00 PM",
            "Friday, 20 November 2026, 12:05\u202fAM",
        ),
        (
            "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (submission)",
            "Thursday, November 19, 2026, 5:00 PM",
            "Friday, November 20, 2026, 12:05 AM",
        ),
        (
            "ID,Vollständiger Name,E-Mail-Adresse,Status,Bewertung,Bestwertung,Zuletzt geändert (Abgabe)",
            "Donnerstag, 19. November 2026, 17:00",
            "Freitag, 20. November 2026, 00:05",
        ),
    ],
)
def test_moodle_s_worksheet_says_when_somebody_handed_in(tmp_path, capsys, head, early, late):
    sheet = tmp_path / "worksheet.csv"

    def list_of(*times: str) -> None:
        lines = [
            f'Participant {7 + at},A{at} B,a{at}@x.org,Submitted,,50.00,"{time}"\n' for at, time in enumerate(times)
        ]
        sheet.write_text("".join([f"{head}\n", *lines]), encoding="utf-8-sig")

    clock = lambda at: placed(tmp_path, f"a{at}").parent / "timestamp.txt"  # noqa: E731
    files = {f"A{at} B_{7 + at}_assignsubmission_file/x.ipynb": released(says=f"one {at}") for at in range(3)}
    first = made(tmp_path / "first.zip", files, (2026, 11, 22, 9, 0, 0))
    list_of(early, late, "-")
    status, out, err = collect(tmp_path, first, "--students", sheet, capsys=capsys)
    assert status == 0 and "1 without a time" in err and "a2/2a_workers: new" in out
    assert [clock(0).read_text(), clock(1).read_text()] == [
        stamp((2026, 11, 19, 17, 0)),
        stamp((2026, 11, 20, 0, 5)),
    ]
    assert not clock(2).exists()

    files |= {f"A{at} B_{7 + at}_assignsubmission_file/x.ipynb": released(says=f"two {at}") for at in (0, 1)}
    second = made(tmp_path / "second.zip", files, (2026, 11, 23, 9, 0, 0))
    list_of(late, "", early)
    _, out, err = collect(tmp_path, second, "--students", sheet, capsys=capsys)
    assert clock(0).read_text() == stamp((2026, 11, 20, 0, 5)) and clock(2).read_text() == stamp((2026, 11, 19, 17, 0))
    status, _, err = collect(tmp_path, first, "--students", sheet, capsys=capsys)
    assert status == 1 and err.count("is newer") == 2 and "two 0" in placed(tmp_path, "a0").read_text()


def test_the_time_of_an_older_notebook_is_not_that_of_a_newer_one(tmp_path, capsys):
    name = "Jane Doe_1_assignsubmission_file/x.ipynb"
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        "Identifier,Full name,Email address,Last modified (submission)\n"
        'Participant 1,Jane Doe,jd1@x.org,"Thursday, 19 November 2026, 5:00 PM"\n'
    )
    collect(tmp_path, made(tmp_path / "a.zip", {name: released(says="a")}), "--students", sheet, capsys=capsys)
    clock = placed(tmp_path, "jd1").parent / "timestamp.txt"
    assert clock.exists()
    again = made(tmp_path / "b.zip", {name: released(says="b")}, (2026, 11, 23, 9, 0, 0))
    collect(tmp_path, again, capsys=capsys)
    assert '"b"' in placed(tmp_path, "jd1").read_text() and not clock.exists()


@pytest.mark.filterwarnings("ignore")
def test_students_of_the_gradebook_are_known_by_their_names(tmp_path, capsys, gradebook):
    with Gradebook(gradebook) as book:
        book.add_student("jd1", first_name="Jane", last_name="Doe")
        book.add_student("zm1", first_name="Zoë", last_name="Müller")
        due = datetime(*WHEN).astimezone(UTC).replace(tzinfo=None) - timedelta(hours=2)
        book.add_assignment(NAME, duedate=due)
    moodle = made(tmp_path / "m.zip", {"Jane Doe_1_assignsubmission_file_/x.ipynb": released()})
    canvas = made(tmp_path / "c.zip", {"müllerzoë_5_6_x.ipynb": released(), "wu_LATE_7_8_x.ipynb": released()})
    assert collect(tmp_path, moodle, canvas, capsys=capsys)[0] == 0
    assert placed(tmp_path, "jd1").exists() and placed(tmp_path, "zm1").exists()
    clock = lambda student: (placed(tmp_path, student).parent / "timestamp.txt").read_text()  # noqa: E731
    assert clock("zm1") == f"{due} UTC\n", "Canvas' times are those of the download; not marked late is in time"
    assert clock("wu_7") == stamp() and not (placed(tmp_path, "jd1").parent / "timestamp.txt").exists()


def test_what_is_handed_in_again_takes_the_place_of_what_is_older(tmp_path, capsys):
    name = "Jane Doe_1_assignsubmission_file_/x.ipynb"
    for when, says, there in (
        (WHEN, "first", "first"),
        ((2026, 11, 21, 9, 0, 0), "second", "second"),
        ((2026, 11, 19, 9, 0, 0), "old", "second"),
    ):
        _, _, err = collect(tmp_path, made(tmp_path / "m.zip", {name: released(says=says)}, when), capsys=capsys)
        assert there in placed(tmp_path, "Jane_Doe").read_text()
        assert ("is newer" in err) == (says == "old")


def test_a_notebook_is_found_however_it_was_packed_and_named(tmp_path, capsys):
    where = "_assignsubmission_file_"
    deep = packed({"more/inner.ZIP": packed({"Übung/2A.IPYNB": released(says="deep")}), "notes.pdf": b"%PDF"})
    files = {
        f"Ann_1{where}/hand in.Zip": deep,
        f"Bo_2{where}/2a_workers.ipynb.txt": released(says="text"),
        f"Cy_3{where}/2a_workers.json": released(says="json"),
        f"Di_4{where}/notebook": released(says="plain"),
        f"Eve_5{where}/config.json": b'{"cells": 3}',
        f"Fay_6{where}/": b"",
        f"Gus_7{where}/2a.ipynb": released(says="gus"),
        f"Gus_7{where}/explanation.docx": b"PK",
    }
    status, out, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    for student, says in (("Ann", "deep"), ("Bo", "text"), ("Cy", "json"), ("Di", "plain"), ("Gus", "gus")):
        assert says in placed(tmp_path, student).read_text(), student
    assert status == 1 and "Eve: no notebook" in err and "Fay: the folder is empty" in err and "Not taken: 2" in err
    assert "explanation.docx" in out and "notes.pdf" in out, "somebody may have written the explanation there"


def test_archives_in_archives_end(tmp_path, capsys):
    data = packed({"2a_workers.ipynb": released()})
    for _ in range(8):
        data = packed({"again.zip": data})
    wide = packed({f"{n}.zip": packed({"x": bytes(63 << 20)}) for n in range(10)})
    where = "_assignsubmission_file_"
    files = {f"A_1{where}/deep.zip": data, f"B_2{where}/wide.zip": wide, f"C_3{where}/x.ipynb": released()}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 1 and "more than 4 deep" in err and placed(tmp_path, "C").exists()
    assert "more than 512 MB" in err, "nobody's archive is unpacked without an end"


def test_canvas_numbers_its_files(tmp_path, capsys):
    """All its times are those of the download, in any order; the larger number is what was handed in later."""
    late, early = (2026, 11, 20, 10, 30, 8), (2026, 11, 20, 10, 30, 0)
    path = tmp_path / "submissions.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, when, says in (
            ("doejane_12345_601_2a_workers.ipynb", late, "first"),
            ("doejane_12345_655_2a_workers-2.ipynb", early, "third"),
            ("doejane_12345_640_2a_workers-1.ipynb", late, "second"),
            ("late_late_777_650_2a.ipynb", early, "late"),
            ("anon_LATE_x7Yz2_651_2a.ipynb", early, "anonymous"),
            ("4242_652_2a.ipynb", early, "nameless"),
            ("roebo_12346_text.html", early, ""),
        ):
            archive.writestr(zipfile.ZipInfo(name, when), released(says=says) if says else b"<p>")
    _, out, err = collect(tmp_path, path, capsys=capsys)
    for student, says in (
        ("doejane_12345", "third"),
        ("late_777", "late"),
        ("anon_x7Yz2", "anonymous"),
        ("student_4242", "nameless"),
    ):
        assert says in placed(tmp_path, student).read_text(), student
    assert out.count(", late") == 2 and "roebo: no notebook" in err
    old = made(
        tmp_path / "old.zip", {"doejane_12345_601_2a_workers.ipynb": released(says="first")}, (2026, 12, 1, 1, 1, 1)
    )
    status, _, err = collect(tmp_path, old, capsys=capsys)
    assert status == 1 and "655_2a_workers-2.ipynb" in err and "third" in placed(tmp_path, "doejane_12345").read_text()


def test_nobody_gets_another_s_folder(tmp_path, capsys):
    """Two of a name whose notebooks come at different times, in different archives, or with one address."""
    name = "Al Gray_{}_assignsubmission_file_/x.ipynb"
    first = made(tmp_path / "a.zip", {name.format(7): released(says="al7")})
    second = made(tmp_path / "b.zip", {name.format(8): released(says="al8")}, (2026, 11, 21, 9, 0, 0))
    collect(tmp_path, first, capsys=capsys)
    _, _, err = collect(tmp_path, second, capsys=capsys)
    assert "al7" in placed(tmp_path, "Al_Gray").read_text() and "al8" in placed(tmp_path, "Al_Gray_8").read_text()
    assert "another Al Gray" in err and "--students" in err
    again = made(
        tmp_path / "c.zip", {name.format(n): released(says=f"new{n}") for n in (7, 8)}, (2026, 11, 22, 9, 0, 0)
    )
    collect(tmp_path, again, capsys=capsys)
    assert "new7" in placed(tmp_path, "Al_Gray").read_text() and "new8" in placed(tmp_path, "Al_Gray_8").read_text()
    assert sorted(path.name for path in (tmp_path / "submitted").iterdir() if path.is_dir()) == ["Al_Gray", "Al_Gray_8"]

    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        "Identifier,Full name,Email address\nParticipant 7,Al Gray,al@a.org\nParticipant 8,Al Gray,al@b.org\n"
    )
    sheet.write_text(sheet.read_text().replace("Full name,", "Full name,ID number,").replace("Al Gray,", "Al Gray,,"))
    other = tmp_path / "other"
    collect(other, again, "--students", sheet, capsys=capsys)
    assert "new7" in placed(other, "al@a.org").read_text() and "new8" in placed(other, "al@b.org").read_text()


def test_a_number_of_one_kind_is_no_number_of_another(tmp_path, capsys):
    """Moodle's participant 1000001 is not whoever has that id number."""
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        "Identifier,Full name,ID number\nParticipant 7,Al Gray,1000001\nParticipant 1000001,Bo Li,0012\n",
        encoding="utf-16",
    )
    files = {"Bo Li_1000001_assignsubmission_file_/x.ipynb": released(says="bo")}
    collect(tmp_path, made(tmp_path / "m.zip", files), "--students", sheet, capsys=capsys)
    assert [path.parent.parent.name for path in (tmp_path / "submitted").glob("*/*/*.ipynb")] == ["0012"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("Anne-Marie OBrien", "Anne-Marie", "O'Brien"),
        ("Zoë Müller", "Zoe\u0308", "Mu\u0308ller"),
        ("JOSÉ  de la Cruz", "José", "de la Cruz"),
        ("Nguyễn Thị Ánh", "Nguyễn", "Thị Ánh"),
        ("李 伟", "李", "伟"),
    ],
)
def test_a_name_is_known_however_it_is_written(tmp_path, capsys, gradebook, name, first, last):
    with Gradebook(gradebook) as book:
        book.add_student("Id,1", first_name=first, last_name=last)
        book.add_student("id2", first_name="Some", last_name="Other")
    canvas = "".join(
        letter for letter in f"{last}{first}".lower() if letter.isalnum() or letter in "\u0308\u0323\u0302"
    )
    moodle = made(tmp_path / "m.zip", {f"{name}_1_assignsubmission_file_/x.ipynb": released()})
    other = made(tmp_path / "c.zip", {f"{canvas}_5_6_x.ipynb": released(OTHER)})
    assert collect(tmp_path, moodle, other, capsys=capsys)[0] == 0
    found = {path.parent.parent.name for path in (tmp_path / "submitted").glob("*/*/*.ipynb")}
    assert found == {"Id,1"}


@pytest.mark.filterwarnings("ignore")
def test_an_id_is_spelled_as_the_gradebook_has_it(tmp_path, capsys, gradebook):
    with Gradebook(gradebook) as book:
        book.add_student("JD1")
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("id;name\njd1;Jane Doe\n../../out;Bad Id\n")
    files = {f"{name}_1_assignsubmission_file_/x.ipynb": released() for name in ("Jane Doe", "Bad Id", "X" * 300)}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), "--students", sheet, capsys=capsys)
    assert status == 1 and "'../../out' holds a sign" in err and err.count("\n") == 3
    assert placed(tmp_path, "JD1").exists() and placed(tmp_path, "X" * 200).exists()
    assert not (tmp_path.parent / "out").exists() and not any(path.name == "out" for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["empty.zip", "empty"])
def test_an_archive_without_anything_is_named(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    made(tmp_path / "empty.zip", {})
    status, out, err = collect(tmp_path, tmp_path / name, capsys=capsys)
    assert status == 1 and "0 notebooks" in out and f"{name}: it holds nothing that was handed in" in err


def test_what_cannot_be_written_costs_only_itself(tmp_path, capsys):
    (tmp_path / "submitted").mkdir()
    (tmp_path / "submitted" / "Ann").write_text("a file")
    files = {f"{name}_1_assignsubmission_file_/x.ipynb": released() for name in ("Ann", "Bo")}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 1 and "cannot be written" in err and placed(tmp_path, "Bo").exists()


def test_of_several_in_an_archive_of_a_student_s_own_the_one_changed_last_is_taken(tmp_path, capsys):
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        for name, day, says in (("a.ipynb", 3, "third"), ("b.ipynb", 1, "first"), ("c.ipynb", 2, "second")):
            archive.writestr(zipfile.ZipInfo(name, (2026, 11, day, 8, 0, 0)), released(says=says))
    files = {"doeann_1_2_all.zip": inner.read_bytes()}
    collect(tmp_path, made(tmp_path / "c.zip", files), capsys=capsys)
    assert "third" in placed(tmp_path, "doeann_1").read_text()
    assert (placed(tmp_path, "doeann_1").parent / "timestamp.txt").read_text() == stamp(), "not when it was packed"


def a_whole_course(says: str) -> dict[str, bytes]:
    """What somebody packs who does not look: every lab as it was released, and the own work beside it."""
    lesson = json.dumps({"cells": [{"cell_type": "markdown", "metadata": {}, "source": "# Map"}]}).encode()
    return {
        f"course/work/{NAME}/{NAME}.ipynb": released(says=says),
        f"course/work/{NAME}/.ipynb_checkpoints/{NAME}-checkpoint.ipynb": released(says="a checkpoint"),
        **{f"course/zlabs/{lab}/{lab}.ipynb": released(lab) for lab in (NAME, OTHER)},
        f"course/zlessons/{NAME}_notes.ipynb": lesson,
        **{f"course/grader/{number}.py": b"import torch" for number in range(40)},
    }


@pytest.mark.parametrize("name", ["{}_1_assignsubmission_file_/all.zip", "{}_1_2_all.zip"])
def test_of_a_whole_course_that_a_student_packed_the_own_work_is_taken(tmp_path, capsys, name):
    """Neither a lab as it was released nor a notebook of none takes its place, whatever their times and names."""
    archive = made(tmp_path / f"Lab {NAME}.zip", {name.format("Ann"): packed(a_whole_course("own work"))})
    _, out, err = collect(tmp_path, archive, capsys=capsys)
    found = sorted((tmp_path / "submitted").glob("*/*/*.ipynb"))
    assert [path.stem for path in found] == [NAME] and "own work" in found[0].read_text()
    assert "1 notebooks of 1 students" in out and "as it was released" in out and "Not taken" not in err
    assert f"zlabs/{OTHER}/{OTHER}.ipynb" in out, "a path says which of several is meant"
    assert len(out.splitlines()) < 20 and "38 more" in out, "forty other files are no list to read"


def test_a_lab_as_it_was_released_takes_no_work_s_place(tmp_path, capsys):
    where = "Ann_1_assignsubmission_file_"
    for nothing in (b"[]", b"{}", b'{"cells": 1}', b"{"):
        assert not as_released(nothing, NAME)
    collect(tmp_path, made(tmp_path / "1.zip", {f"{where}/x.ipynb": released(OTHER, says="own work")}), capsys=capsys)
    files = {f"{where}/x.ipynb": released(OTHER), f"{where}/2.ipynb": released()}
    empty = {f"{where}/{OTHER}.ipynb": b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'}
    collect(tmp_path, made(tmp_path / "3.zip", empty, (2026, 11, 21, 8, 0, 0)), "--lab", OTHER, capsys=capsys)
    assert "own work" in placed(tmp_path, "Ann", OTHER).read_text()
    _, _, err = collect(tmp_path, made(tmp_path / "2.zip", files, (2026, 11, 21, 9, 0, 0)), capsys=capsys)
    assert "own work" in placed(tmp_path, "Ann", OTHER).read_text() and "as it was released" in err
    assert placed(tmp_path, "Ann").exists(), "who did nothing handed in all the same"


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_of_a_lab_that_was_not_set_is_named(tmp_path, capsys, gradebook):
    """It may be handed in in place of another."""
    archive = made(tmp_path / "m.zip", {f"Ann_1_assignsubmission_file_/{NAME}.ipynb": released(OTHER, says="ann")})
    for name, said in (("", False), (NAME, True), (OTHER, False)):
        with Gradebook(gradebook) as book:
            if name:
                book.add_assignment(name)
        _, _, err = collect(tmp_path, archive, capsys=capsys)
        assert ("a lab that your gradebook does not have" in err and f"Ann/{OTHER}, from Ann_1" in err) == said


def test_an_archive_does_no_harm(tmp_path, capsys):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as inner:
        inner.writestr("2a_workers.ipynb", bytes(65 << 20))
    where = "_assignsubmission_file_"
    archive = made(
        tmp_path / "m.zip",
        {
            f"A_1{where}/../../../../out.ipynb": released(),
            f"/B_2{where}/x.ipynb": released(),
            f"C_3{where}/link.ipynb": b"/etc/passwd",
            f"D_4{where}/bomb.zip": bomb.getvalue(),
            f"E_5{where}/broken.ipynb": b"{no json",
            f"F_6{where}/broken.zip": b"PK no zip",
            f"_.G_7{where}/x.ipynb": released(says="gee"),
            f"H\\H_8{where}/x.ipynb": released(says="aitch"),
            f"A\x1b[31m_9{where}/x.ipynb": released(says="red"),
            f"I_10{where}/lab 2A-workers.ipynb": b"\xff\xfe\x00",
            "nobody.ipynb": released(),
        },
        link=f"C_3{where}/link.ipynb",
    )
    before = {path for path in tmp_path.rglob("*") if "submitted" not in path.parts}
    status, out, err = collect(tmp_path, archive, capsys=capsys)
    assert status == 1 and "\x1b" not in out + err
    for said in ("leads out of", "a link to another", "larger than 64 MB", "which lab", "not a zip", "whose it is"):
        assert said in err, said
    assert {path for path in tmp_path.rglob("*") if "submitted" not in path.parts} == before
    found = {path.parent.parent.name: path for path in (tmp_path / "submitted").glob("*/*/*.ipynb")}
    assert {"G", "H", "I"} <= found.keys() and len(found) == 4
    assert all(name.isprintable() and name[0] not in "._" for name in found)
    assert [one.student for one in read_class(LABS, tmp_path / "submitted") if not one.submission] == ["I"]


def test_one_student_s_archive_ends_no_class(tmp_path, capsys):
    damaged = io.BytesIO()
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_LZMA) as inner:
        inner.writestr("x.ipynb", released())
    damaged = bytearray(damaged.getvalue())
    damaged[damaged.find(b"x.ipynb") + len("x.ipynb") + 4] = 255  # the settings of its compression
    digits, lines = tmp_path / "digits.zip", tmp_path / "lines.zip"
    made(digits, {f"x-{'9' * 5000}.ipynb": released()})
    made(lines, {"x\n400 notebooks of 400 students.ipynb": released()})
    handed_in = {"A_1": bytes(damaged), "B_2": digits.read_bytes(), "C_3": lines.read_bytes()}
    files = {f"{who}_assignsubmission_file_/x.zip": data for who, data in handed_in.items()}
    archive = made(tmp_path / "m.zip", files | {"D_4_assignsubmission_file_/x.ipynb": released()})
    status, out, err = collect(tmp_path, archive, capsys=capsys)
    assert status == 1 and "is damaged" in err and "\n400 notebooks" not in out + err
    assert {path.name for path in (tmp_path / "submitted").iterdir() if path.is_dir()} >= {"B", "C", "D"}


def alike(count: int, name: bytes, content: bytes) -> bytes:
    """A ZIP file of so many entries that share one packed content."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    sizes = zlib.crc32(content), len(packed), len(content), len(name)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, *sizes, 0) + name + packed
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, *sizes, *[0] * 6) + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, count * len(entry), len(local), 0)
    return local + count * entry + end


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "content"),
    [(b"x.ipynb", bytes(64 << 20)), (b"x.txt", bytes(64 << 20)), (b"x.zip", b"PK"), (b"x.ipynb", b"{}")],
)
def test_no_student_s_archive_holds_the_class_up_or_hides_the_others(tmp_path, capsys, name, content):
    """Of 20,000 files of 64 MB, in an archive of 1 MB, the first bytes were looked at: each time all 64 MB were unpacked."""
    where = "_assignsubmission_file_"
    files = {f"A_1{where}/x.zip": alike(20_000, name, content), f"B_2{where}/{NAME}.ipynb": released()}
    _, out, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert f"B/{NAME}: new" in out and "A_1" in err and len(err.splitlines()) < 20


def test_a_name_is_no_formula_in_the_list_of_who_is_who(tmp_path, capsys):
    files = {'=HYPERLINK("x")_1_assignsubmission_file_/x.ipynb': released()}
    collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    (row,) = rows(tmp_path / "submitted" / "collected.csv")
    assert row["name"].startswith("'=") and row["file"].startswith("'=") and row["number"] == "1"


def test_no_link_is_followed(tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    (tmp_path / "submitted" / "A").mkdir(parents=True)
    (tmp_path / "submitted" / "A" / NAME).symlink_to(elsewhere)
    (tmp_path / "submitted" / "B" / NAME).mkdir(parents=True)
    placed(tmp_path, "B").symlink_to(elsewhere / "kept")
    files = {f"{name}_1_assignsubmission_file_/x.ipynb": released() for name in "AB"}
    _, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert "is a link" in err and os.listdir(elsewhere) == ["kept"] and (elsewhere / "kept").read_text() == "kept"
    assert not placed(tmp_path, "B").is_symlink()


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_no_archive(tmp_path, capsys, data):
    (tmp_path / "x.zip").write_bytes(data)
    status, _, err = collect(tmp_path, tmp_path / "x.zip", capsys=capsys)
    assert status == (2 if data[:2] != b"PK" else 1) and "Traceback" not in err
    assert collect(tmp_path, tmp_path / "none.zip", capsys=capsys)[0] == 2


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252"]
)
def test_encodings(tmp_path, encoding):
    """Windows' editors write them: the submission is the same in each."""
    text = released(says="Größe").decode()
    folder = tmp_path / "submitted" / "ann" / NAME
    folder.mkdir(parents=True)
    path = folder / f"{NAME}.ipynb"
    path.write_bytes(text.encode(encoding, "xmlcharrefreplace"))
    assert load_notebook(path)["cells"][-1]["source"] == "Größe"
    (one,) = read_class(LABS, tmp_path / "submitted")
    assert one.submission and one.explained, one.problem


def test_every_student_s_folder_is_read(tmp_path):
    names = ("_ann", "__bo", "007", "O'Brien, Bo", "=cyd", "Zoe\u0308", "ÄÖ ü")
    for name in (*names, "__MACOSX", ".ipynb_checkpoints"):
        placed(tmp_path, name).parent.mkdir(parents=True)
        placed(tmp_path, name).write_bytes(released())
    assert {one.student for one in read_class(LABS, tmp_path / "submitted")} == set(names)


def test_a_renamed_notebook_is_named_with_the_command_that_puts_it_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    submitted = Path("this year")
    (submitted / "ann" / NAME).mkdir(parents=True)
    (submitted / "ann" / NAME / "2a_workers (1).ipynb").write_bytes(released())
    (submitted / "bob").mkdir()
    (submitted / "bob" / "mine.ipynb").write_bytes(released(OTHER))
    os.mkfifo(submitted / "bob" / "pipe.ipynb")
    (submitted / "bob" / "zlink.ipynb").symlink_to("/dev/zero")
    renamed, mine, pipe, link = misplaced(submitted)
    assert (pipe, link) == ("bob/pipe.ipynb", "bob/zlink.ipynb")
    for said, place in ((renamed, f"ann/{NAME}/{NAME}.ipynb"), (mine, f"bob/{OTHER}/{OTHER}.ipynb")):
        subprocess.run(["bash", "-ec", said.partition(": ")[2]], check=True)
        assert (submitted / place).exists(), said
    assert misplaced(submitted) == [pipe, link]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_help_says_what_it_takes():
    command = [sys.executable, "-m", "grader", "class", "collect", "--help"]
    done = subprocess.run(command, env=scripts.environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "Moodle" in done.stdout and "Canvas" in done.stdout
