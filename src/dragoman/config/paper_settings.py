"""Where the paper's text, its code and a recipe part: the table that a run prints before it starts.

Each trap is one knob: what the text of "Attention Is All You Need" says of it (None where it says nothing), what tensor2tensor
1.0.3, the code behind the paper's numbers, did, and where either says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Trap:
    key: str
    place: str
    text: Any
    code: Any


@dataclass(frozen=True)
class Departure:
    """A knob that stands otherwise than the text says, or of which the text says nothing and the code something else."""

    key: str
    ours: Any
    text: Any
    code: Any
    place: str

    def sentence(self) -> str:
        said = f"the text says {_show(self.text)} ({self.place})" if self.text is not None else "the text does not say"
        return f"{self.key} = {_show(self.ours)}; {said}, its code has {_show(self.code)}"


def _show(value: Any) -> str:
    return "none" if value is None else str(value).lower()


TRAPS = (
    Trap("model.norm", "section 3.1", "post", "post"),
    Trap("model.final_norm", "section 3.1", False, False),
    Trap("model.attention_bias", "section 3.2.2", False, True),
    Trap("model.position_encoding", "section 3.5", "interleaved", "concatenated"),
    Trap("model.tie_embeddings", "section 3.4", "all", "all"),
    Trap("model.scale_embeddings", "section 3.4", True, True),
    Trap("model.initialization", "nowhere", None, "glorot"),
    Trap("model.norm_epsilon", "nowhere", None, 1e-6),
    Trap("model.attention_dropout", "section 5.4", 0.0, 0.0),
    Trap("model.activation_dropout", "section 5.4", 0.0, 0.0),
    Trap("model.residual_dropout", "section 5.4", 0.1, 0.1),
    Trap("model.embedding_dropout", "section 5.4", 0.1, 0.1),
    Trap("model.decoder_start_token", "section 3.1: offset by one", None, "zero"),
    Trap("model.append_source_eos", "nowhere", None, True),
    Trap("model.target_space_embedding", "section 3.4", False, True),
    Trap("model.attention_window", "section 4: future work", None, None),
    Trap("training.adam_beta1", "section 5.3", 0.9, 0.9),
    Trap("training.adam_beta2", "section 5.3", 0.98, 0.98),
    Trap("training.adam_epsilon", "section 5.3", 1e-9, 1e-9),
    Trap("training.weight_decay", "nowhere", None, 0.0),
    Trap("training.schedule", "equation 3", "noam", "noam"),
    Trap("training.lr_factor", "equation 3", 1.0, 1.0),
    Trap("training.warmup_steps", "section 5.3", 4000, 4000),
    Trap("training.lr_decay_ratio", "equation 3", 0.0, 0.0),
    Trap("training.label_smoothing", "section 5.4", 0.1, 0.1),
    Trap("training.label_smoothing_mode", "nowhere", None, "exclude_target"),
    Trap("training.clip_norm", "nowhere", None, None),
    Trap("decoding.beam_size", "section 6.1", 4, 4),
    Trap("decoding.length_penalty", "section 6.1, through [GNMT]", "gnmt", "gnmt"),
    Trap("decoding.alpha", "section 6.1", 0.6, 0.6),
    Trap("decoding.max_extra_tokens", "section 6.1", 50, 50),
    Trap("decoding.early_stopping", "section 6.1: when possible", None, "exhaustive"),
)


TRAPS_OF_PARSING = {
    trap.key: trap
    for trap in (
        Trap("model.tie_embeddings", "section 3.4", "all", "none"),
        Trap("model.attention_dropout", "section 6.3: chosen, not printed", None, 0.2),
        Trap("model.residual_dropout", "section 6.3: chosen, not printed", None, 0.2),
        Trap("model.embedding_dropout", "section 6.3: chosen, not printed", None, 0.2),
        Trap("training.lr_factor", "section 6.3: chosen, not printed", None, 1.0),
        Trap("training.warmup_steps", "sections 5.3 and 6.3", 4000, 16000),
        Trap("decoding.beam_size", "section 6.3", 21, 4),
        Trap("decoding.alpha", "section 6.3", 0.3, 0.6),
        Trap("decoding.max_extra_tokens", "section 6.3", 300, 50),
    )
}
"""What section 6.3 and the code's transformer_parsing_base have otherwise."""


# What the rows of Table 3 print otherwise than base, but for their sizes.
_ROWS: dict[str, dict[str, Any]] = {
    "big": {"model.residual_dropout": 0.3, "model.embedding_dropout": 0.3},
    "D-p0": {"model.residual_dropout": 0.0, "model.embedding_dropout": 0.0},
    "D-p0.2": {"model.residual_dropout": 0.2, "model.embedding_dropout": 0.2},
    "D-ls0": {"training.label_smoothing": 0.0},
    "D-ls0.2": {"training.label_smoothing": 0.2},
    "E": {"model.position_encoding": "learned"},
}
# Section 6.1 has big with this much of dropout for English to French.
_BIG_TO_FRENCH = 0.1


def _printed(trap: Trap, recipe: Mapping[str, Any]) -> Trap:
    """The trap as the text has it for this task, language and row of Table 3."""
    task = recipe.get("task", {})
    if task.get("kind") == "parsing":
        return TRAPS_OF_PARSING.get(trap.key, trap)
    value = _ROWS.get(recipe["size"], {}).get(trap.key)
    if value is None:
        return trap
    if recipe["size"] == "big" and (task.get("source_language"), task.get("target_language")) == ("en", "fr"):
        return replace(trap, text=_BIG_TO_FRENCH, code=_BIG_TO_FRENCH, place="section 6.1")
    return replace(trap, text=value, code=value, place="Table 3")


def departures(recipe: Mapping[str, Any]) -> list[Departure]:
    """How a recipe (as nested plain values) departs from the printed text, and where that is silent, from its code."""
    found = []
    for trap in TRAPS:
        section, knob = trap.key.split(".")
        trap = _printed(trap, recipe)
        ours = recipe[section][knob]
        if trap.key == "model.final_norm" and ours is None:
            ours = recipe["model"]["norm"] == "pre"
        if trap.key == "training.lr_factor" and recipe["training"]["schedule"] != "noam":
            continue
        silent = trap.text is None
        as_code = recipe["preset"] == "t2t-2017"  # which promises the code, so that a departure from that is told as well
        if ours != (trap.code if silent else trap.text) or (as_code and ours != trap.code):
            found.append(Departure(trap.key, ours, trap.text, trap.code, trap.place))
    return found
