"""%%grader_run: a notebook's cell that trains, looked at as `grader run` looks at a command."""

import json
import shlex
import shutil
import sys
from typing import Any


def install(shell: Any) -> None:
    shell.register_magic_function(_magic(shell), "cell", "grader_run")


def _magic(shell: Any) -> Any:
    def grader_run(line: str, cell: str) -> None:
        """Run this cell as usual, time and record some of its training steps, and say what holds them back.

        Options as those of `grader run`: --at-step 50, --after 1m, --stacks, --step module:function, --out FOLDER."""
        import argparse

        from grader.frontends import run
        from grader.own.record import record
        from grader.own.running import Seen, gather
        from grader.result import write_json

        parser = argparse.ArgumentParser(prog="%%grader_run", exit_on_error=False)
        run.add_arguments(parser)
        options = parser.parse_args(shlex.split(line))
        out = run.out_folder(options.out)
        folder = run.own_folder(out)
        watch = _begin({**run.watching(options), "folder": str(folder.resolve())})
        try:
            shell.run_cell(cell)
            watch.give_up("the cell ended")
            seen = Seen(torch=True)
            gather(folder, seen)
            while seen.next_look():
                pass  # the last one is told
            if seen.looks:
                run.Looks(out, stop=False)(seen)
            found = record(seen, ["%%grader_run"])
            write_json(out / "run.json", found)
            for said in run.summary(seen, found):
                run.say(said)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return grader_run


def _begin(options: dict[str, Any]) -> Any:
    """The watcher in this process: its hooks are made once, and lie still between cells."""
    from grader.own.running import WATCH

    sys.path.insert(0, str(WATCH))
    try:
        import grader_watch

        if grader_watch.watch is None:
            grader_watch.begin(json.dumps(options))
        else:
            grader_watch.watch.options = grader_watch.Options(options)
            grader_watch.watch.start_anew()
    finally:
        sys.path.remove(str(WATCH))
    return grader_watch.watch
