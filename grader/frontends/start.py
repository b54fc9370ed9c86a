"""The start notebook's two displays: what this machine can do, and the labs."""

from __future__ import annotations

from html import escape
from typing import Any

from grader import labs
from grader.errors import UserError
from grader.frontends import cli


def doctor() -> None:
    """Print what this machine can grade, and what is missing."""
    cli.main(["doctor"])


def lab_list() -> Any:
    """A widget with one row a lab: what it is about, and a button that makes a working copy and links to it."""
    import ipywidgets as widgets

    return widgets.VBox([_row(labs.get(name)) for name in labs.NAMES])


def _row(lab: Any) -> Any:
    import ipywidgets as widgets

    text = widgets.HTML(f"<b>{escape(lab.name)}</b> &nbsp;{escape(lab.title)}<br>{escape(lab.goal)}")
    button = widgets.Button(description="Start", tooltip=f"Make a working copy of {lab.name}", icon="play")
    opened = widgets.HTML()

    def start(_: Any) -> None:
        try:
            path = cli.start(lab.name).relative_to(cli.REPOSITORY)
        except (UserError, OSError) as error:
            opened.value = escape(str(error))
            return
        # the server's root is the course's folder; JupyterLab resolves links relative to this notebook
        opened.value = f'Yours to change: <a href="../{path}" target="_blank">{path}</a> (also in the file browser)'

    button.on_click(start)
    return widgets.VBox([text, widgets.HBox([button, opened])], layout=widgets.Layout(margin="0 0 12px 0"))
