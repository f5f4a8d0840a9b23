"""Which documents of a held-out text are of which source, so that one source can be read by itself from the committed rows.

    python -m experiments.ouroboros.sources OUT.json --source smollm2 --text corpus/heldout_ood.jsonl.gz

The passages are drawn as `experiments.ouroboros.run` draws them; the fingerprint says whether they are those of a row.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from loopwright.data.records import Files, Record, text_field
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.text import read_passages
from loopwright.storage.files import write_whole


def sources(text: Path, source: str, context: int, passages: int) -> dict[str, object]:
    """Returns the fingerprint of the passages that are drawn, and the numbers of their documents by source."""
    drawn = read_passages(text.name, text, Tokenizer(source), context).drawn(passages)
    # read as the passages are, whose documents are numbered without blank lines and records that hold no text
    of_document = [_source_of(record) for record in Files(str(text)) if text_field(record, "text") is not None]
    found: dict[str, list[int]] = {}
    for document in sorted({row.document for row in drawn.rows}):
        found.setdefault(of_document[document], []).append(document)
    return {"fingerprint": drawn.fingerprint, "documents": found}


def _source_of(record: Record) -> str:
    where, fields = record
    name = fields.get("source")
    if not isinstance(name, str):
        got = type(name).__name__ if "source" in fields else "nothing"
        raise ValueError(f"{where}: a document needs a field 'source' with the name of where it is from (got {got})")
    return name


def main() -> None:
    """Reads the command line and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", required=True, help="the folder of the dense model, for its tokenizer")
    parser.add_argument("--text", type=Path, required=True, help="JSON lines, gzipped or not, with `text` and `source`")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--passages", type=int, default=256)
    options = parser.parse_args()
    try:
        found = sources(options.text, options.source, options.context, options.passages)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    write_whole(options.out, json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
