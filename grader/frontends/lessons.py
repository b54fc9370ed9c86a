"""Execute the lessons on this machine and keep their outputs: `python -m grader.frontends.lessons [NOTEBOOK ...]`."""

import argparse
import os
import sys
import time
from pathlib import Path

from grader.course import execute
from grader.course.outline import lessons
from grader.paths import with_this_package


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 a lesson failed, 2 no such notebook."""
    parser = argparse.ArgumentParser(prog="python -m grader.frontends.lessons", description=__doc__.partition(":")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all lessons")
    parser.add_argument("--quick", action="store_true", help="small sizes; without --to nothing is kept")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write there, and leave the lessons as they are")
    options = parser.parse_args(arguments)
    chosen = [path.resolve() for path in options.notebooks] or lessons()
    if missing := [str(path) for path in chosen if not path.is_file()]:
        print(f"no such notebook: {', '.join(missing)}", file=sys.stderr)
        return 2
    # kernels are children of this process: they use the package that the lessons belong to, installed or not
    os.environ.update(with_this_package())
    failed, began = [], time.monotonic()
    for number, path in enumerate(chosen):
        passed = time.monotonic() - began
        left = f", about {passed / number * (len(chosen) - number):.0f} s left" if number else ""
        print(f"[{number + 1}/{len(chosen)}] {path.parent.name}/{path.stem}{left}", flush=True)
        start = time.monotonic()
        try:
            notebook = execute.execute(path, quick=options.quick, progress=sys.stderr.isatty())
        except Exception as error:  # one lesson that fails does not keep the others from being made
            failed.append(path)
            print(f"    FAILED, left as it was: {execute.reason(error)}", flush=True)
            continue
        if options.to:
            execute.write(notebook, options.to / path.parent.name / path.name)
        elif not options.quick:
            execute.write(notebook, path)
        print(f"    {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} lessons executed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
