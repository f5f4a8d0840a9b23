"""The study pages as templates: prose once, numbers and verdicts as expressions over the committed rows.

`NAME.md.j2` is the page docs/NAME.md (README.md.j2 is README.md); the modules beside it are what pages ask of the rows of a study,
and `words.py` has the filters that tell an answer. `make pages` writes the pages; tests/experiments/test_templates.py fails where
one is stale.

To port a page: copy it to NAME.md.j2 under a head with `queries` and `settings`. Put an expression in the place of each result, and
`{% do holds(...) %}` before a sentence that no filter can turn. Move what is asked of the rows into a module here; whatever formats
text stays out of it. Render until the page is the committed one byte for byte. A name that a template
alone uses is not imported for it: list its module among `queries`.
"""
