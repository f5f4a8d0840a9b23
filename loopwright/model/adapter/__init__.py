"""What differs per step: a list of adapters, each a kind of this table."""

from __future__ import annotations

from loopwright.model.adapter.diagonal import Controller, StaticDiagonal
from loopwright.model.adapter.effects import Adapter
from loopwright.model.adapter.lowrank import ABBA, HiRA, LowRank
from loopwright.model.adapter.signal import LearnedStep, LevelSignal, SinusoidalStep

ADAPTERS: dict[str, type[Adapter]] = {
    "sinusoidal": SinusoidalStep,
    "step-embedding": LearnedStep,
    "level-signal": LevelSignal,
    "low-rank": LowRank,
    "hira": HiRA,
    "abba": ABBA,
    "diagonal": StaticDiagonal,
    "controller": Controller,
}
