"""`loopwright presets`: the systems that can be built by name."""

from __future__ import annotations

from rich.table import Column, Table

from loopwright.commands.console import console
from loopwright.commands.inspect import stacks
from loopwright.model import cost
from loopwright.model.presets import PRESETS, preset

SOURCES = {
    "universal": "Universal Transformer (Dehghani et al. 2018)",
    "ouro-1.4b": "Ouro 1.4B (Zhu et al. 2025)",
    "ouro-2.6b": "Ouro 2.6B (Zhu et al. 2025)",
    "huginn": "Huginn 3.5B (Geiping et al. 2025)",
    "retrofit-llama-1b": "retrofitted Llama-3.2-1B (McLeish et al. 2025)",
    "retrofit-olmo2-1b": "retrofitted OLMo-2-1B (McLeish et al. 2025)",
    "retrofit-tinyllama": "retrofitted TinyLlama (McLeish et al. 2025)",
    "stars-addition": "the STARS study's addition transformer (2026)",
    "asura": "ASURA (2025)",
    "ouroboros-qwen2.5-3b": "Ouroboros V2 on Qwen2.5-3B",
    "relaxed": "Relaxed Recursive Transformer on TinyLlama shapes (Bae et al. 2024)",
}


def presets() -> None:
    """Prints the presets: size, stacks and the system each one is."""
    table = Table(Column("preset", no_wrap=True), Column("parameters", justify="right", no_wrap=True), "stacks", "system")
    for name in PRESETS:
        config = preset(name)
        table.add_row(name, f"{cost.parameters(config)['total'].unique:,}", stacks(config, config.depth), SOURCES[name])
    out = console()
    out.print(table)
    out.print("NAME-tiny is the same system at test size; lw.build(NAME) makes either with fresh weights.")
