"""How Sphinx makes the site (`grader.nightly.site`). No cell is executed, and no page loads anything from elsewhere."""

from typing import Any

project = html_title = "Make PyTorch training fast"
author = ""
extensions = ["myst_nb"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # a saved widget would load its scripts from elsewhere
myst_enable_extensions = ["html_image", "dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3  # lessons link to the glossary's terms
suppress_warnings = [
    "myst.header",  # the glossary has its terms right below its title
    "mystnb.unknown_mime_type",  # what an output has besides the form that is shown
]

html_theme = "pydata_sphinx_theme"
html_static_path = ["static"]
html_css_files = ["course.css"]
templates_path = ["templates"]
html_sidebars = {"**": ["course-map.html"]}
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {"text": html_title},
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "article_header_start": [],
    "footer_start": [],
    "footer_end": [],
    "show_toc_level": 2,
}


def setup(app: Any) -> None:
    """Formulas as MathML, which browsers draw by themselves; Sphinx's own renderers need a network or LaTeX."""
    from docutils.nodes import SkipNode
    from docutils.utils.math.latex2mathml import tex2mathml

    def inline(translator: Any, node: Any) -> None:
        translator.body.append(str(tex2mathml(node.astext())))
        raise SkipNode

    def block(translator: Any, node: Any) -> None:
        translator.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
        raise SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
