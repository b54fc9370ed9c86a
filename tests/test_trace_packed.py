"""Traces in what people pack them in: the same as unpacked, in bounded memory, and a reason where that cannot be."""

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zipfile

import pytest
from test_trace_anybody import Job

from grader import trace
from grader.frontends import cli
from grader.trace import packed

TEXT = Job().steps(6).text().encode()


def as_zip(files, method=zipfile.ZIP_DEFLATED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def as_tar(files, mode="w", kind=tarfile.PAX_FORMAT):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode, format=kind) as archive:
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.type = len(text), tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(about, io.BytesIO(text))
    return data.getvalue()


LONG = "run/" + "of_a_very_long_name_" * 12 + "/rank0.pt.trace.json"
BESIDE = {"run/": b"", "run/._t.json": b"\0\5\x16\7", "run/README.md": b"# read me", "run/t.json": TEXT}
ALL = {
    "bz2": bz2.compress(TEXT),
    "bz2 of several streams": bz2.compress(TEXT[:999]) + bz2.compress(TEXT[999:]),
    "xz": lzma.compress(TEXT),
    "xz of several streams, padded": lzma.compress(TEXT[:99]) + bytes(8) + lzma.compress(TEXT[99:]),
    "lzma": lzma.compress(TEXT, lzma.FORMAT_ALONE),
    "gzip twice": gzip.compress(gzip.compress(TEXT)),
    "zip": as_zip({"t.json": TEXT}),
    "zip, stored": as_zip({"t.json": TEXT}, zipfile.ZIP_STORED),
    "zip, lzma": as_zip({"t.json": TEXT}, zipfile.ZIP_LZMA),
    "zip of a gzip": as_zip({"run/t.pt.trace.json.gz": gzip.compress(TEXT)}),
    "zip with other files": as_zip({**BESIDE, "__MACOSX/run/t.json": b"\0"}),
    "tar": as_tar(BESIDE),
    "tar.gz": as_tar(BESIDE, "w:gz"),
    "tar.bz2": as_tar(BESIDE, "w:bz2"),
    "tar.xz": as_tar(BESIDE, "w:xz"),
    "tar of a gzip": as_tar({"t.json.gz": gzip.compress(TEXT)}),
    "tar.gz of a gzip": as_tar({"t.json.gz": gzip.compress(TEXT)}, "w:gz"),
    "tar, a long name": as_tar({LONG: TEXT}),
    "tar of GNU, a long name": as_tar({LONG: TEXT}, kind=tarfile.GNU_FORMAT),
}
if packed.zstd:
    ALL["zst"] = packed.zstd.compress(TEXT)


@pytest.mark.parametrize("how", ALL)
def test_a_packed_trace_is_read_like_an_unpacked_one(tmp_path, how):
    (tmp_path / "t.json").write_bytes(TEXT)
    (tmp_path / "t.packed").write_bytes(ALL[how])
    plain, read = trace.read(tmp_path / "t.json"), trace.read(tmp_path / "t.packed")
    assert len(read) == len(plain) and read.complete and not read.notes
    assert trace.analyse(read).diagnosis == trace.analyse(plain).diagnosis


@pytest.mark.parametrize("how", ["bz2", "xz", "tar.gz", "tar", "zip, stored"])
def test_one_that_breaks_off_is_judged_by_its_whole_steps(tmp_path, how):
    text = Job().steps(300).text().encode()
    whole = {
        "bz2": bz2.compress(text, 1),
        "xz": lzma.compress(text),
        "tar.gz": as_tar({"t.json": text}, "w:gz"),
        "tar": as_tar({"t.json": text}),
        "zip, stored": as_zip({"t.json": text}, zipfile.ZIP_STORED),
    }[how]
    (tmp_path / "t").write_bytes(whole[: len(whole) * 3 // 4])
    if how.startswith("zip"):  # its table of contents stood at its end
        with pytest.raises(trace.TraceError, match=r"zip.*cut short"):
            trace.read(tmp_path / "t")
        return
    read = trace.read(tmp_path / "t")
    assert read.complete and any("cut short" in note or "break off" in note for note in read.notes)
    assert trace.analyse(read).metrics.steps > 100


def encrypted(data):
    """A zip whose file says that it is encrypted."""
    return data.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0").replace(
        b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0"
    )


TWO = {"rank0.json": TEXT, "rank1.json": TEXT}


@pytest.mark.parametrize(
    "data, says",
    [
        (as_zip(TWO), "holds 2 traces"),
        (as_tar(TWO), "holds more than one trace"),
        (as_tar(TWO, "w:gz"), "holds more than one trace"),
        (as_zip({"a.txt": b"hello"}), "holds no trace"),
        (as_tar({"a.txt": b"hello"}, "w:xz"), "holds no trace"),
        (encrypted(as_zip({"t.json": TEXT})), "password"),
        (as_zip({"t.json": b"{}"}), "no list of traceEvents"),
        (lzma.compress(b"\x7fELF" * 99), "a program"),
        (bz2.compress(b"PK\3\4" + bytes(99)), "zip archive"),
        (b"BZh91AY&SY" + bytes(500), "damaged"),
        (b"PK\3\4" + bytes(500), "zip"),
        (lzma.compress(b""), "empty"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, data, says):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(trace.TraceError, match=says) as error:
        trace.read(tmp_path / "t")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "pack", [bz2.compress, lzma.compress, lambda b: as_zip({"t.json": b}), lambda b: as_tar({"t.json": b}, "w:xz")]
)
def test_a_bomb_is_given_up(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(sys.modules["grader.trace.read"], "LEAST_UNZIPPED", 32 << 20)
    (tmp_path / "t").write_bytes(pack(b'{"traceEvents": [' + b" " * (64 << 20)))
    with pytest.raises(trace.TraceError, match="larger than 32 MB"):
        trace.read(tmp_path / "t")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, *([packed.zstd.compress] if packed.zstd else [])])
def test_a_million_tiny_streams_are_not_looked_through(tmp_path, pack):
    """Each is cut off the rest of its block, which takes time with the square of their number."""
    text = Job().steps(300).text().encode()
    (tmp_path / "t").write_bytes(pack(text[:50_000]) + pack(b" ") * 2000 + pack(text[50_000:]))
    assert "they have too many members" in "; ".join(trace.read(tmp_path / "t").reasons)
    (tmp_path / "t").write_bytes(b"".join(pack(text[at : at + 40_000]) for at in range(0, len(text), 40_000)))
    assert trace.read(tmp_path / "t").complete


def test_a_large_file_of_bgzip_is_read_whole(tmp_path):
    """It packs each 64 KB for themselves, so 66 MB are more than a thousand streams."""
    text = Job().steps(3).text().encode()
    half = text.index(b"},", len(text) // 2) + 2
    text = text[:half] + b" " * (66 << 20) + text[half:]
    (tmp_path / "t").write_bytes(
        b"".join(gzip.compress(text[at : at + 65_280], 1) for at in range(0, len(text), 65_280))
    )
    assert trace.read(tmp_path / "t").complete


def test_a_zip_of_a_million_names_is_not_looked_through(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MOST_CONTENTS", 1 << 12)
    (tmp_path / "t.zip").write_bytes(as_zip({f"{i}.txt": b"" for i in range(200)} | {"t.json": TEXT}))
    with pytest.raises(trace.TraceError, match="unpack it"):
        trace.read(tmp_path / "t.zip")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, lambda b: gzip.compress(gzip.compress(b))])
def test_what_a_stranger_wrote_is_unpacked_from_gzip_only(tmp_path, pack):
    """A grade reads the file of the process that it judges: what torch.profiler writes, and nothing more."""
    (tmp_path / "t").write_bytes(pack(TEXT))
    with pytest.raises(trace.TraceError, match="unpack it"):
        trace.read(tmp_path / "t", max_bytes=64 << 20)


def test_diagnose_annotates_a_packed_trace_and_finds_it_in_a_folder(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.json.xz").write_bytes(lzma.compress(TEXT))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["diagnose", "in", "--annotate", "out.json"]) == 0
    again = trace.read(tmp_path / "out.json")
    assert len(again) >= len(trace.read(tmp_path / "in" / "t.json.xz"))
    assert "compute-bound" in capsys.readouterr().out
