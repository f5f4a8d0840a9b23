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
        recipe = read_yaml((HERE / "own_parts.yaml").read_text(), "own_parts.yaml")
        recipe.pop("import")  # the parts are registered above
        run = lw.train(recipe, out="runs/own-parts")

        lw.check(lw.load(run.folder.path))

        model, tokenizer = lw.load(run.folder.path), lw.tokenizer(run.folder.path)
        answer = model.generate(tokenizer("abc", return_tensors="pt").input_ids, max_new_tokens=4, do_sample=False)
        tokenizer.decode(answer[0])
    """,
    "train_own_data": "",
}
OPENING = """from pathlib import Path

from loopwright.settings import read_yaml

HERE = Path("examples") if Path("examples").is_dir() else Path()"""


def notebook(name: str) -> str:
    """Returns the notebook of a script: its docstring, then a cell for each part between two blank lines."""
    text = (HERE / f"{name}.py").read_text()
    title = ast.get_docstring(ast.parse(text)) or ""
    code = FROM_THE_COMMAND_LINE.sub(r"\1\2", text.split('"""', 2)[2]).replace("import sys\n", "")
    cells = [cell.strip() for cell in code.split("\n\n\n")]
    ending = re.sub(r"^ {8}", "", ENDINGS[name].rstrip(), flags=re.MULTILINE).strip()
    cells += [OPENING, *ending.split("\n\n")] if ending else []
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
