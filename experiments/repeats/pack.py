"""Everything that the runs of the study need on another machine, in one folder of some 36 MB: text, tokenizer, tokens, rows so far.

    python -m experiments.repeats.pack CORPUS FOLDER

There, in a checkout or an export of it (`git archive`), with FOLDER beside it and a GPU that many processes share. Each runner has
a file of rows of its own; all go on where they were stopped, and a limit in seconds ends each. The runs that are missing, in the
order of their weight, with the seconds that they are expected to take on one H200:

    nvidia-cuda-mps-control -d
    tar -xf FOLDER/tokens.tar.xz                    # ./shards
    run() { cp -n FOLDER/start.jsonl $1.jsonl; python -m experiments.repeats.run $1.jsonl --corpus FOLDER/corpus \\
            --tokenizer FOLDER/bpe --shards shards --seconds $2 --workers $3 --only "$4" --seeds $5; }
    # seeds 1 and 2 at sixteen readings, the other rate of each depth, and then seeds at the better one: 140 s
    run seeds 160 6 "ASURA/16 times/0.001/|plain, equal FLOPs/16 times/0.001/|plain, equal parameters/16 times/0.001/" 1,2 &
    (run depths 160 8 "three times the updates/1 times|ASURA, depth" 0,1,2; run depths 100 8 "ASURA, depth" 1,2) & wait

The runs on all of the text (`--only "all of the text" --seeds 0`, about 270 s beside one another) need all files of CORPUS and
shards of their own, which are made there in two or three minutes of one processor; `python -m experiments.asura.run` reads the same
ones. New rows are added by `python -m experiments.kept experiments/results/repeats/runs.jsonl seeds.jsonl depths.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.asura.run import SETTINGS
from experiments.corpus import PASSAGES, held_out_files, make_tokenizer, prepare, prepare_passages, texts
from experiments.repeats.plan import LENGTH, STOPPED, TEXTS
from experiments.repeats.run import LAID

FIRST = 5  # files of the training text: enough for three times the text
ROWS = Path(__file__).parents[1] / "results/repeats/runs.jsonl"


def main() -> None:
    """Reads the command line and makes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="train-*.jsonl.gz, and valid, test and heldout_ood.jsonl.gz")
    parser.add_argument("folder", type=Path, help="made")
    asked = parser.parse_args()
    pack(asked.corpus, asked.folder)


def pack(corpus: Path, folder: Path) -> None:
    """Makes the folder: the files themselves, since tokens are known by what they were made of, and what runs make of them."""
    from loopwright.recipes import recipe

    own = folder / "corpus"
    own.mkdir(parents=True)
    train = sorted(corpus.glob("train-*.jsonl.gz"))[:FIRST]
    for path in [*train, *held_out_files(corpus).values()]:
        shutil.copyfile(path, own / path.name)
    make_tokenizer(str(own), folder / "bpe")
    with tempfile.TemporaryDirectory() as place:
        shards = Path(place) / "shards"
        for documents in TEXTS.values():
            given = [*SETTINGS, *texts(str(own), str(folder / "bpe")), *LAID, f"data.limit={documents}"]
            prepare(recipe("asura-text", given).data, str(shards))
        prepare_passages(held_out_files(own), str(folder / "bpe"), LENGTH, shards / PASSAGES)
        with tarfile.open(folder / "tokens.tar.xz", "w:xz", preset=3) as archive:
            archive.add(shards, "shards")
    (folder / "start.jsonl").write_text("".join(kept(ROWS.read_text().splitlines())))


def kept(lines: Iterable[str]) -> Iterator[str]:
    """Yields the rows that need not be made again: all but those of text read so often that one must stop early, and did not."""
    for line in lines:
        row = json.loads(line)
        if row["times"] != STOPPED or "stopped" in row:
            yield line + "\n"


if __name__ == "__main__":
    main()
