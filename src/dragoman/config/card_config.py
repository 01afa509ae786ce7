"""Section `card` of a recipe: what people should know about the model."""

import unicodedata
from typing import Annotated

from dragoman.config.section import Limits, RecipeSection


def _check_line(text: str) -> None:
    """Raise ValueError if a text is not one line of at most 200 characters, or if it controls the terminal that shows it."""
    if len(text) > 200 or any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text):
        raise ValueError(f"{text[:40]!r}: give one line of at most 200 characters, without control characters")


CardLine = Annotated[str, _check_line]


class CardConfig(RecipeSection):
    """Purpose, license and scores of the model. `info`, `models`, `translate` and the page of the server show them."""

    purpose: CardLine = ""
    """What the model is for, in one sentence."""
    license: CardLine = ""
    """License of the weights, such as `CC-BY-4.0`."""
    score: CardLine = ""
    """Score on a test set, such as `BLEU 37.6 on tatoeba`."""
    examples: Annotated[list[CardLine], Limits(max_length=10)] = []
    """Texts that the model translates well, which the page of the server offers."""
