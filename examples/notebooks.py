"""Write the notebooks of this folder from its scripts, so that there is one source of each.

python examples/notebooks.py
"""

import ast
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
FROM_THE_COMMAND_LINE = re.compile(r"^(\w+ = ).* if len\(sys\.argv\) > \d else (.*)$", re.MULTILINE)
# what the shell commands at the top of a script do, from Python
ENDINGS = {
    "own_parts": """
        run = lw.train(read_yaml(RECIPE, "own_parts.yaml"), out="runs/own-parts")

        lw.check(lw.load(run.folder.path))

        model, tokenizer = lw.load(run.folder.path), lw.tokenizer(run.folder.path)
        answer = model.generate(tokenizer("abc", return_tensors="pt").input_ids, max_new_tokens=4, do_sample=False)
        tokenizer.decode(answer[0])
    """,
    "train_own_data": "",
}
INSTALL = """# where loopwright is not installed, as in Colab: upload the wheel that `pip wheel . --no-deps` makes in a clone, then
# %pip install ./loopwright-*.whl"""
OPENING = '''from loopwright.schema import read_yaml

RECIPE = """
{}"""'''


def notebook(name: str) -> str:
    """Returns the notebook of a script: its docstring, then a cell for each part between two blank lines.

    It reads no file beside it, so that it runs from any folder: a recipe becomes text, without the line that imports the parts,
    which are registered in the cells above.
    """
    text = (HERE / f"{name}.py").read_text()
    title = ast.get_docstring(ast.parse(text)) or ""
    code = FROM_THE_COMMAND_LINE.sub(r"\1\2", text.split('"""', 2)[2]).replace("import sys\n", "")
    cells = [INSTALL, *(cell.strip() for cell in code.split("\n\n\n"))]
    ending = re.sub(r"^ {8}", "", ENDINGS[name].rstrip(), flags=re.MULTILINE).strip()
    if ending:
        recipe = re.sub(r"^import:.*\n", "", (HERE / f"{name}.yaml").read_text(), flags=re.MULTILINE)
        cells += [OPENING.format(recipe), *ending.split("\n\n")]
    made = [{"cell_type": "markdown", "id": "title", "metadata": {}, "source": title.split("\n\n")[0]}]
    for number, cell in enumerate(cells):
        shape = {"cell_type": "code", "execution_count": None, "id": f"cell-{number}", "metadata": {}, "outputs": []}
        made.append({**shape, "source": cell})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in ENDINGS:
        (HERE / f"{name}.ipynb").write_text(notebook(name))
