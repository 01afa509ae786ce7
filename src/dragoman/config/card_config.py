"""Section `card` of a recipe: what people should know about the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from dragoman.config.fields import RecipeSection, Utf8Text


def _check_line(text: str) -> str:
    """Return the text. Raises ValueError if it is not one line of at most 200 characters."""
    if len(text) > 200 or len(text.splitlines()) > 1:
        raise ValueError(f"{text[:40]!r}: give one line of at most 200 characters")
    return text


CardLine = Annotated[Utf8Text, AfterValidator(_check_line)]


class CardConfig(RecipeSection):
    """Purpose, license and scores of the model. `info`, `models`, `translate` and the page of the server show them."""

    purpose: CardLine = ""
    """What the model is for, in one sentence."""
    license: CardLine = ""
    """License of the weights, such as `CC-BY-4.0`."""
    score: CardLine = ""
    """Score on a test set, such as `BLEU 37.6 on tatoeba`."""
    examples: Annotated[list[CardLine], Field(max_length=10)] = []
    """Texts that the model translates well, which the page of the server offers."""
