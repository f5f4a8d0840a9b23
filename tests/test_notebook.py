"""Results in a notebook."""

from rich.table import Table

from loopwright.notebook import html_of


def test_tables_are_html_and_text_in_them_is_escaped() -> None:
    table = Table("name", "loss")
    table.add_row("<script>alert(1)</script>", "1.25")
    page = html_of(table)
    assert page.startswith("<pre") and "1.25" in page and "<script>" not in page and "&lt;script&gt;" in page
