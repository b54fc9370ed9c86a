"""Hand-ins of other systems than Moodle and Canvas, or packed otherwise than as ZIP."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_collect import LABS, NAME, WHEN, collect, made, placed, released, rows

from grader.classroom.archives import entries, of_folder
from grader.classroom.submissions import read_class
from tests.odd_class import packed

WHERE = "_assignsubmission_file_"


def tar(files: dict[str, bytes], mode: str = "w:gz", *links: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for at, (name, content) in enumerate(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_790_000_000 + at
            archive.addfile(info, io.BytesIO(content))
        for link in links:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return data.getvalue()


def found(root: Path) -> dict[str, str]:
    """Student -> the last cell of the notebook that was taken."""
    paths = (root / "submitted").glob("*/*/*.ipynb")
    return {path.parts[-3]: json.loads(path.read_text(encoding="utf-8"))["cells"][-1]["source"] for path in paths}


def test_what_is_packed_otherwise_than_as_zip_is_opened(tmp_path, capsys):
    one = {"my work/2a_workers.ipynb": released(says="in")}
    packings = {
        "a.tgz": tar(one),
        "a.tar.gz": tar({f"./{name}": data for name, data in one.items()}),
        "a.tar": tar(one, "w"),
        "a.tar.bz2": tar(one, "w:bz2"),
        "a.tar.xz": tar(one, "w:xz"),
        "2a_workers.ipynb.gz": gzip.compress(released(says="in")),
        "2a_workers.ipynb.bz2": bz2.compress(released(says="in")),
        "2a_workers.ipynb.xz": lzma.compress(released(says="in")),
        "called.zip": tar(one),
        "called.tar.gz": packed(one),
        "called.ipynb": packed(one),
        "packed twice.zip": packed({"a.tar.gz": tar(one)}),
    }
    files = {f"S{at}_{at}{WHERE}/{name}": data for at, (name, data) in enumerate(packings.items())}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 0 and "Not taken" not in err
    assert found(tmp_path) == {f"S{at}": "in" for at in range(len(packings))}


@pytest.mark.parametrize("name", ["a.rar", "a.7z", "2a_workers.py", "2a_workers.html", "link.txt"])
def test_who_handed_in_no_notebook_is_to_be_asked_for_it(tmp_path, capsys, name):
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", {f"Ann_1{WHERE}/{name}": b"Rar!"}), capsys=capsys)
    assert status == 1 and f"Ann: no notebook among what was handed in (Ann_1{WHERE}/{name}), so ask for" in err


@pytest.mark.parametrize(("begin", "kind"), [(b"Rar!\x1a\x07\x01\0", "RAR"), (b"7z\xbc\xaf'\x1c\0\4", "7z")])
def test_an_archive_that_is_only_called_zip(tmp_path, capsys, begin, kind):
    files = {f"Ann_1{WHERE}/2a.zip": begin + bytes(99), f"Bo_2{WHERE}/2a.ipynb": begin + bytes(99)}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 1 and f"Ann_1{WHERE}/2a.zip: it is a {kind} archive, so ask for the .ipynb file" in err
    assert f"Bo_2{WHERE}/2a.ipynb: it is a {kind} archive" in err


def test_the_same_file_twice_is_one(tmp_path, capsys):
    files = {f"Ann_1{WHERE}/{name}": released(says="x") for name in ("2a.ipynb", "2a (1).ipynb", "in.d/2a.ipynb")}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 0 and "Not taken" not in err and found(tmp_path) == {"Ann": "x"}


def test_a_tar_file_does_no_harm(tmp_path, capsys):
    bomb = tar({"2a_workers.ipynb": bytes(65 << 20)})
    whole = tar({"2a_workers.ipynb": released()})
    hand_ins = {
        "Ann": tar({}, "w:gz", "2a_workers.ipynb"),
        "Bo": bomb,
        "Cy": whole[: len(whole) // 2],
        "Di": tar({"../../../../out.ipynb": released(says="di"), "/abs/2a_workers.ipynb": b""}),
    }
    files = {f"{who}_{at}{WHERE}/w.tar.gz": data for at, (who, data) in enumerate(hand_ins.items())}
    before = {path for path in tmp_path.rglob("*")} | {tmp_path / "m.zip"}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 1 and "larger than 64 MB" in err and "Cy_2" in err and "Ann: no" in err
    assert found(tmp_path) == {"Di": "di"}
    assert {path for path in tmp_path.rglob("*") if "submitted" not in path.parts} == before


@pytest.mark.slow
def test_nobody_s_tar_file_is_unpacked_without_an_end(tmp_path, capsys):
    files = {f"Ed_1{WHERE}/w.tar.gz": gzip.compress(bytes(600 << 20), 1)}
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 1 and "more than 512 MB" in err and found(tmp_path) == {}


def test_a_class_may_come_as_a_tar_file_or_a_folder(tmp_path, capsys):
    (tmp_path / "class.tar.gz").write_bytes(tar({f"Ann_1{WHERE}/x.ipynb": released(says="ann")}))
    repository = tmp_path / "lab-2a-submissions" / "lab-2a-bo" / "labs" / NAME
    repository.mkdir(parents=True)
    (repository / f"{NAME}.ipynb").write_bytes(released(says="bo"))
    (repository / "link.ipynb").symlink_to("/etc/passwd")
    status, _, err = collect(tmp_path, tmp_path / "class.tar.gz", repository.parents[2], capsys=capsys)
    assert found(tmp_path) == {"Ann": "ann", "lab-2a-bo": "bo"} and "a link to another file" in err and status == 1
    assert "timestamp.txt" in err and not (placed(tmp_path, "lab-2a-bo").parent / "timestamp.txt").exists()
    assert collect(tmp_path, tmp_path / "none.tar.gz", capsys=capsys)[0] == 2
    (tmp_path / "class.tar.gz").write_bytes(b"\x1f\x8b no gzip")
    assert collect(tmp_path, tmp_path / "class.tar.gz", capsys=capsys)[0] == 2


def test_a_tar_file_may_begin_with_the_folder_that_was_packed(tmp_path, capsys):
    """`tar -czf class.tar.gz .` within the folder of a class writes "." first."""
    folder = tmp_path / "class"
    for name in (f"Ann_1{WHERE}", f"Bo_2{WHERE}"):
        (folder / name).mkdir(parents=True)
    (folder / f"Ann_1{WHERE}" / "x.ipynb").write_bytes(released(says="ann"))
    with tarfile.open(tmp_path / "class.tar.gz", "w:gz") as archive:
        archive.add(folder, ".")
    status, _, err = collect(tmp_path, tmp_path / "class.tar.gz", capsys=capsys)
    assert status == 1 and "Bo: the folder is empty" in err and found(tmp_path) == {"Ann": "ann"}


def test_a_file_may_say_that_it_is_of_a_time_that_no_calendar_has():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # other file systems have no such times
        notebook = Path(folder, "2a_workers.ipynb")
        notebook.write_bytes(released())
        os.utime(notebook, (1e12, 1e12))
        (entry,) = of_folder(Path(folder))
        assert entry.when is None and entry.read() == released()


def test_a_name_of_an_archive_has_an_end():
    """To put accents in order takes a time that goes with the square of their number."""
    long = "a" * 2000 + "/" + "b" * 1000 + "/c"
    (entry,) = entries(io.BytesIO(packed({long: b""})), "x.zip", io.BytesIO())
    assert entry.name == "a" * 1000 + "/" + "b" * 1000 + "/c"


# ---------------------------------------------------------------- other systems
# Brightspace: folders as rename_and_move.sh of its users lists them; flat names, with the school's id, as their scripts parse them.
# Blackboard: bb-file-cleanup (README.md). Sakai: AssignmentServiceImpl.java. Teams: Teams Assignment Explorer (README.md): Submitted
# files, student, homework, version. ILIAS: getDirectoryNameFromUserData and downloadAllAssignmentFiles in class.ilExSubmission.php.
# Gradescope: exports that its users' scripts read (submission_metadata.yml with :submitters:, :sid:, :created_at:).

GRADESCOPE = """---
submission_345:
  :submitters:
  - :name: Jane Doe
    :sid: jd1
    :email: jane@x.org
  :created_at: 2026-11-20 10:30:01.473395000 Z
  :score: 0.0
  :results: !ruby/hash:ActiveSupport::HashWithIndifferentAccess
    output: "submission_346:"
submission_346:
  :submitters:
  - :name: Zoë Müller
    :sid: '0042'
    :email: zoe@x.org
  - :name: Bo Li
    :sid:
    :email: bo.li@x.org
  :created_at: 2026-11-21 10:00:00 +01:00
"""
BLACKBOARD = {
    f"Lab201c_zm_2_attempt_2026-11-2{day}-10-30-00{end}": data
    for day in (0, 1)
    for end, data in {
        "_2a.ipynb": released(says=f"zoe {day}"),
        ".txt": "Name: Zoë Müller (zm_2)\nX: y".encode(),
    }.items()
}
SYSTEMS: dict[str, tuple[dict[str, bytes], dict[str, str], dict[str, tuple[int, ...]]]] = {
    "Brightspace": (
        {
            "index.html": b"<p>",
            "62334-99 - Jane Doe - Nov 20, 2026 1030 AM/2a.ipynb": released(says="jane 1"),
            "62334-99 - Jane Doe - Nov 21, 2026 130 PM/2a.ipynb": released(says="jane 2"),
            "62335-99 - Zoë Müller-Lee - 21 November, 2026 1130 PM/my.ipynb": released(says="zoe"),
        },
        {"Jane_Doe": "jane 2", "Zoë_Müller-Lee": "zoe"},
        {"Jane_Doe": (2026, 11, 21, 13, 30), "Zoë_Müller-Lee": (2026, 11, 21, 23, 30)},
    ),
    "Blackboard": (
        BLACKBOARD | {"Lab201c_jd1_attempt_2026-11-20-10-30-00_2a.ipynb": released(says="jane")},
        {"jd1": "jane", "zm_2": "zoe 1"},
        {"jd1": (2026, 11, 20, 10, 30), "zm_2": (2026, 11, 21, 10, 30)},
    ),
    "Sakai": (
        {
            "Lab 2a/grades.csv": b"x",
            "Lab 2a/Doe, Jane(jd1)/timestamp.txt": b"20261120103000000",
            "Lab 2a/Doe, Jane(jd1)/Submission attachment(s)/2a_workers.ipynb": released(says="jane"),
            "Lab 2a/Doe, Jane(jd1)/Feedback Attachment(s)/2a_workers.ipynb": released(says="feedback"),
            "Lab 2a/Müller, Zoë(zm)/timestamp.txt": b"20261121103000000",
            "Lab 2a/Müller, Zoë(zm)/comments.txt": b"",
            "Lab 2a/Müller, Zoë(zm)/Anhänge/2a_workers.ipynb": released(says="zoe"),
        },
        {"jd1": "jane", "zm": "zoe"},
        {"jd1": (2026, 11, 20, 10, 30), "zm": (2026, 11, 21, 10, 30)},
    ),
    "Brightspace, flat": (
        {
            "index.html": b"<p>",
            "62334-99 - Jane Doe - Sept 20, 2026 1030 AM - 2a.ipynb": released(says="jane 1"),
            "62334-99 - Jane Doe - Oct 1, 2026 130 PM - 2a - new.ipynb": released(says="jane 2"),
            "62335-99 - N0123456 - Zoë Müller-Lee - 21 March, 2026 1130 PM - my.ipynb": released(says="zoe"),
        },
        {"Jane_Doe": "jane 2", "N0123456": "zoe"},
        {"Jane_Doe": (2026, 10, 1, 13, 30), "N0123456": (2026, 3, 21, 23, 30)},
    ),
    "ILIAS": (
        {
            "Lab 2a_77/Doe_Jane_jd1_1234/2a_workers.ipynb": released(says="jane"),
            "Lab 2a_77/Doe_Jane_jd1_1234/x_y_z_1/notes.txt": b"x",
            "Lab 2a_77/von der Au_Zoe_z_m_2_1235/Late Submission - meine.ipynb": released(says="zoe"),
        },
        {"jd1": "jane", "z_m_2": "zoe"},
        {"jd1": WHEN, "z_m_2": WHEN},
    ),
    "ILIAS with teams": (
        {f"Team {at}/Doe_{who}_{who}1_{at}/2a.ipynb": released(says=who) for at, who in enumerate(("Jane", "Bo"))},
        {"Jane1": "Jane", "Bo1": "Bo"},
        {"Jane1": WHEN, "Bo1": WHEN},
    ),
    "Gradescope": (
        {
            "assignment_12_export/submission_metadata.yml": GRADESCOPE.encode(),
            "assignment_12_export/submission_345/my/2a.ipynb": released(says="jane"),
            "assignment_12_export/submission_345/submission_metadata.yml": b"submission_346: {':submitters': []}",
            "assignment_12_export/submission_346/2a.ipynb": released(says="pair"),
        },
        {"jd1": "jane", "0042": "pair", "bo.li": "pair"},
        {"jd1": (2026, 11, 20, 10, 30, 1), "0042": (2026, 11, 21, 9), "bo.li": (2026, 11, 21, 9)},
    ),
    "Teams": (
        {
            f"Student Work/{folder}/{who}/Lab 2a/{version}{who}.ipynb": released(says=f"{who} {version}")
            for who in ("Jane Doe", "Zoë Müller")
            for folder, version in (
                ("Submitted files", "Version 9/"),
                ("Submitted files", "Version 10/"),
                ("Working files", ""),
            )
        },
        {"Jane_Doe": "Jane Doe Version 10/", "Zoë_Müller": "Zoë Müller Version 10/"},
        {},
    ),
    "a form of Google's": (
        {
            "Lab 2a (File responses)/2a_workers - Jane Doe.ipynb": released(says="jane"),
            "Lab 2a (File responses)/Untitled0 - Zoë Müller.ipynb": released(says="zoe"),
        },
        {"Jane_Doe": "jane", "Zoë_Müller": "zoe"},
        {},
    ),
    "Google's classroom": (
        {f"{who} - Lab 2a.ipynb": released(says=who) for who in ("Jane Doe", "Bo - Li")},
        {"Jane_Doe": "Jane Doe", "Bo": "Bo - Li"},
        {},
    ),
    "repositories": (
        {
            "lab-2a-submissions/lab-2a-jane/labs/2a_workers/2a_workers.ipynb": released(says="jane"),
            "lab-2a-submissions/lab-2a-jane/README.md": b"x",
            "lab-2a-submissions/lab-2a-jane/.git/config": b"x",
            "lab-2a-submissions/lab-2a-bo/solution/2a_workers.ipynb": released(says="bo"),
        },
        {"lab-2a-jane": "jane", "lab-2a-bo": "bo"},
        {},
    ),
    "one repository": (
        {"lab-2a-jane-main/README.md": b"x", f"lab-2a-jane-main/work/{NAME}/{NAME}.ipynb": released(says="jane")},
        {"lab-2a-jane-main": "jane"},
        {},
    ),
    "folders": (
        {f"submitted/{who}/{NAME}/{NAME}.ipynb": released(says=who) for who in ("ann", "bo")},
        {"ann": "ann", "bo": "bo"},
        {},
    ),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_hand_ins_of_other_systems(tmp_path, capsys, system):
    files, students, times = SYSTEMS[system]
    archive = made(tmp_path / "class.zip", files)
    _, out, err = collect(tmp_path, archive, capsys=capsys)
    assert found(tmp_path) == students and f"{len(students)} notebooks of {len(students)} students" in out
    for student in students:
        clock = placed(tmp_path, student).parent / "timestamp.txt"
        assert clock.exists() == (student in times)
        if student in times:
            zone = UTC if system == "Gradescope" else None  # it says its own; the others mean this machine's
            assert (
                clock.read_text() == f"{datetime(*times[student], tzinfo=zone).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC\n"
            )
    older = sum("is newer" in line for line in out.splitlines())
    theirs = [name for name in files if name.endswith(".ipynb") and "Feedback" not in name and "Working" not in name]
    assert older == max(0, len(theirs) - len(students))
    assert err.count("whose it is") == 0 and ("late" in err) == (not times)
    _, out, _ = collect(tmp_path, archive, capsys=capsys)
    assert out.count("unchanged") == len(students) and found(tmp_path) == students


IN_SAKAI = "Lab 2a/Doe, Jane(jd1)/Submission attachment(s)"
HOSTILE = {
    "Sakai": {
        **{f"{IN_SAKAI}/zm_12345_{at}_2a_workers.ipynb": released(says="jane's for zoe") for at in range(9)},
        f"{IN_SAKAI}/timestamp.txt": b"20200101000000000",
    },
    "a form of Google's": {"Lab 2a (File responses)/Zoë Müller - Lab 2a.ipynb": released(says="of one called Lab 2a")},
    "Brightspace": {
        f"62334-99 - Jane Doe - Nov 20, 2026 1030 AM/{name}": released(says="old")
        for name in (
            "zm_1_2_2a.ipynb",
            "Zoë_1_assignsubmission_file_2a.ipynb",
            "x_attempt_2026-11-20-10-30-00_2a.ipynb",
        )
    },
    "ILIAS": {
        f"Lab 2a_77/Doe_Jane_jd1_1234/von der Au_Zoe_z_m_2_1235/{at}.ipynb": released(says="jane's") for at in range(9)
    },
    "Gradescope": {
        "assignment_12_export/submission_345/Submitted files/zm_1_2_2a.ipynb": released(says="jane's"),
    },
    "Teams": {
        "Student Work/Submitted files/Jane Doe/Lab 2a/Version 11/Zoë_1_assignsubmission_file_2a.ipynb": released(
            says="j"
        ),
        "Student Work/Submitted files/Jane Doe/Lab 2a/Version 11/Doe_Zoë_zm_1/2a.ipynb": released(says="j"),
    },
    "folders": {
        f"submitted/ann/mine/{name}.ipynb": released(says="ann") for name in ("bo_1_2_a", "bo_1_3_b", "bo_1_4_c")
    },
    "Blackboard": {
        f"Lab201c_jd1_attempt_2026-11-20-10-30-00_{at}_1_{at}_zm_2_attempt_2026-11-30-10-30-00_2a.ipynb": released(
            says="old"
        )
        for at in range(9)
    },
}


@pytest.mark.parametrize("system", HOSTILE)
def test_no_name_that_a_student_gives_a_file_makes_it_another_s(tmp_path, capsys, system):
    files, students, times = SYSTEMS[system]
    collect(tmp_path, made(tmp_path / "class.zip", HOSTILE[system] | files), capsys=capsys)
    for student in students:
        if student not in ("jd1", "Jane_Doe", "ann"):  # whose the other files are
            assert found(tmp_path)[student] == students[student]
            clock = placed(tmp_path, student).parent / "timestamp.txt"
            assert not times or clock.read_text().startswith(f"{datetime(*times[student]).astimezone(UTC):%Y-%m-%d %H}")
    known = {*students, "Lab_2a"}
    assert found(tmp_path).keys() <= known


@pytest.mark.parametrize(
    "said", [b"", b"- x", b"submission_345: 3", b"submission_345:\n  :submitters: [3]", b"{", b"[" * 9999]
)
def test_an_export_that_does_not_say_whose_it_is(tmp_path, capsys, said):
    files = {"e/submission_metadata.yml": said, "e/submission_345/2a.ipynb": released()}
    status, _, err = collect(tmp_path, made(tmp_path / "g.zip", files), capsys=capsys)
    assert status == 1 and "e/submission_345/2a.ipynb: it does not say whose it is" in err and not found(tmp_path)


def test_a_time_that_nobody_can_read_is_said(tmp_path, capsys):
    files = {"62334-99 - Jane Doe - 24 septembre 2026 9 h 26/2a.ipynb": released()}
    _, _, err = collect(tmp_path, made(tmp_path / "b.zip", files), capsys=capsys)
    assert "1 without a time" in err and "timestamp.txt" in err


def test_a_number_of_any_length_stops_no_class(tmp_path, capsys):
    files = {f"eve_1_{5000 * '9'}_2a.ipynb": released(), "bo_2_3_2a.ipynb": released(says="bo")}
    status, _, err = collect(tmp_path, made(tmp_path / "c.zip", files), capsys=capsys)
    assert status == 1 and "Not taken: 1\n  eve_1_9" in err and found(tmp_path) == {"bo_2": "bo"}


def test_an_id_of_the_archive_is_one_of_the_list(tmp_path, capsys):
    (tmp_path / "list.csv").write_text("id,name\nJD1,Jane Doe\nzm_2,Zoë Müller\n", encoding="utf-8")
    files = SYSTEMS["Blackboard"][0]
    collect(tmp_path, made(tmp_path / "b.zip", files), "--students", tmp_path / "list.csv", capsys=capsys)
    assert found(tmp_path) == {"JD1": "jane", "zm_2": "zoe 1"}


def test_a_member_of_a_group_is_the_student_of_the_list(tmp_path, capsys):
    (tmp_path / "list.csv").write_text("id,name\njd1,Jane Doe\nam1,Anne-Marie Lee\n", encoding="utf-8")
    names = ("Group A-Jane Doe", "Team B-2-Anne-Marie Lee", "Group C-Somebody Else")
    files = {f"{name}_{at}{WHERE}/x.ipynb": released(says=name) for at, name in enumerate(names)}
    collect(tmp_path, made(tmp_path / "m.zip", files), "--students", tmp_path / "list.csv", capsys=capsys)
    assert found(tmp_path) == dict(zip(("jd1", "am1", "Group_C-Somebody_Else"), names, strict=True))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (bytes(4096), "it is empty"),
        (b"\n\n<!DOCTYPE html><p>Sign in", "it is a web page"),
        (b"%PDF-1.7\n\xff", "it is a PDF"),
        (released().replace(b'"cells"', b'\n<<<<<<< HEAD\n"cells"', 1), "both sides of a conflict"),
        (released()[:-400], "its JSON is broken"),
        (b'{"url": "https://docs.google.com/open"}', "no list of cells"),
    ],
)
def test_what_is_no_notebook_is_said_and_takes_no_notebook_s_place(tmp_path, capsys, data, why):
    name = f"Ann_1{WHERE}/{NAME}.ipynb"
    status, _, err = collect(tmp_path, made(tmp_path / "1.zip", {name: data}), capsys=capsys)
    assert f"Ann/{NAME}, from {name}: " in err and why in err and "ask for it again" in err and status == 1
    (one,) = read_class(LABS, tmp_path / "submitted")
    assert not one.submission and (why in one.problem or data[:4] == b'{"ur')
    collect(tmp_path, made(tmp_path / "2.zip", {name: released(says="whole")}), capsys=capsys)
    again = made(tmp_path / "3.zip", {name: data}, (2026, 11, 22, 9, 0, 0))
    status, _, err = collect(tmp_path, again, capsys=capsys)
    assert status == 1 and "can be read" in err and found(tmp_path) == {"Ann": "whole"}
    assert [row["file"] for row in rows(tmp_path / "submitted" / "collected.csv")] == [name]
