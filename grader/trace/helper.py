"""A process that decodes a part of a large trace while others decode the rest.

Run as a script, by path: `python -I -S helper.py FOLDERS START END LAST`, with the trace on standard input. It writes a header
as msgpack, then the columns. A part that does not decode ends it with an error; the reader then sees to that part itself."""

import os
import sys


def main() -> None:
    folders, start, end, last = sys.argv[1], *map(int, sys.argv[2:5])
    sys.path[:0] = folders.split(os.pathsep)
    here = os.path.dirname(os.path.abspath(__file__))
    # The packages, without what their __init__ imports.
    for name, folder in (("grader", os.path.dirname(here)), ("grader.trace", here)):
        package = type(sys)(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    # Imported here, once they can be found; nothing else is, so it works within a tenth of a second.
    import msgspec

    from grader.trace.decode import Columns
    from grader.trace.pieces import before_comma, file_blocks, whole_events

    columns = Columns()
    for chunk in whole_events(file_blocks(0, start, end)):
        if chunk.closed:
            columns.add(chunk.array())
    rest = chunk.text()
    if not last:
        columns.add(b"[" + before_comma(rest) + b"]")
        rest = b""
    packed = {name: b"".join(parts) for name, parts in columns.packed.items()}
    sizes = [len(column) for column in packed.values()]
    header = msgspec.msgpack.encode(columns.header() | {"sizes": sizes, "rest": rest})
    with os.fdopen(1, "wb") as output:
        output.write(len(header).to_bytes(8, "little"))
        output.write(header)
        output.writelines(packed.values())


if __name__ == "__main__":
    main()
