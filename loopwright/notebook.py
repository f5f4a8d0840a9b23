"""What results look like in a notebook."""

from __future__ import annotations

import io
from typing import Any

WIDTH = 110  # columns of a table in a notebook


class Shown:
    """A result that is a table, in a notebook too."""

    def table(self) -> Any:
        """Returns the result for rich to print."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_of(self.table())


def html_of(renderable: Any) -> str:
    """Returns what rich would print as HTML for a notebook's cell; text in it is escaped."""
    from loopwright.terminal import Screen  # rich, which nothing but a notebook needs here

    console = Screen(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.25">{code}</pre>')
