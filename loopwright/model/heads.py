"""Looped models that classify rows or tokens, or find answers: transformers' own heads over `LoopedModel`."""

from __future__ import annotations

from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.modeling_utils import PreTrainedModel

from loopwright.model.config import LoopedConfig


class _Headed(PreTrainedModel):
    """What a head over a looped model is to transformers. Abstract. `depth=` and the other words of a pass go on to the model."""

    config_class = LoopedConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    accepts_loss_kwargs = False  # the losses of transformers' heads are means over their own batch


class LoopedForSequenceClassification(GenericForSequenceClassification, _Headed):
    """One label for each row, read at its last token that is no padding."""


class LoopedForTokenClassification(GenericForTokenClassification, _Headed):
    """A label for each token."""


class LoopedForQuestionAnswering(GenericForQuestionAnswering, _Headed):
    """The first and the last token of an answer."""


# here and not in autoregister.py, which may be asked while this file waits for transformers' heads
AutoModelForSequenceClassification.register(LoopedConfig, LoopedForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(LoopedConfig, LoopedForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(LoopedConfig, LoopedForQuestionAnswering, exist_ok=True)
