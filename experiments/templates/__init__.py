"""The study pages as templates: prose once, numbers as expressions over the committed rows.

`NAME.md.j2` is the page docs/NAME.md; what it asks of the rows stands in the modules beside it. `make pages` writes the pages.
"""
