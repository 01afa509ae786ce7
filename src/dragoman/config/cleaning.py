"""What is dropped from a corpus, and what is changed as it is served."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dragoman.config.fields import Fraction, PositiveInt, RecipeSection


class CleaningConfig(RecipeSection):
    """Rules that drop pairs, all off unless the recipe turns them on; pairs with an empty side are always dropped."""

    max_words: PositiveInt | None = None
    """`length`: drop pairs with more words than this on a side; a letter of a script without spaces counts as a word."""
    max_characters: PositiveInt | None = None
    """`length`: drop pairs with more characters than this on a side."""
    max_ratio: Annotated[float, Field(gt=1.0)] | None = None
    """`ratio`: drop pairs whose longer side has over ten characters and more than this many times those of the shorter."""
    source_equals_target: bool = False
    """Drop pairs whose sides are the same, save for case and spaces."""
    duplicate_pairs: bool = False
    """Drop all but the first of equal pairs, within a corpus and across those of a mixture."""
    duplicate_sources: bool = False
    """Drop all but the first of the pairs with equal sources, likewise."""
    control_characters: bool = False
    """`control`: drop pairs with control characters, the replacement character, or code points that are nobody's."""
    mojibake: bool = False
    """Drop pairs in which UTF-8 was once read as something else (extra `cleaning`)."""
    markup: bool = False
    """Drop pairs with what is left of HTML, XML, wiki or template markup."""
    min_script_ratio: Fraction | None = None
    """Drop pairs with less than this share of a side's letters in its language's script (extra `cleaning`)."""
    min_language_probability: Fraction | None = None
    """Drop pairs with a side that is in another language, at no less than this certainty (extra `cleaning`)."""
    numbers: bool = False
    """Drop pairs whose sides do not hold the same numbers, however they are punctuated."""
    urls: bool = False
    """Drop pairs whose sides do not hold the same web and mail addresses."""
    eval_overlap: bool = False
    """Drop pairs whose source or target stands in data.valid or data.test, whatever its case and punctuation."""


class NoiseConfig(RecipeSection):
    """Changes made to training pairs as they are served, each to this share of the pairs, anew in every epoch."""

    upper_case: Fraction = 0.0
    """Both sides in capitals."""
    title_case: Fraction = 0.0
    """Both Sides With Capital Initials."""
    typos: Fraction = 0.0
    """Typing mistakes in the source: letters dropped, doubled, swapped, or replaced by a neighbour on the keyboard."""
    drop_final_punctuation: Fraction = 0.0
    """Both sides without their final punctuation."""
    concat_next: Fraction = 0.0
    """This pair and the next one as one."""
    copy_source: Fraction = 0.0
    """The source as its own target, so that names and code pass through."""
    placeholders: Fraction = 0.0
    """A number or name that both sides share becomes a placeholder such as {0} or %s; where none is shared, one is put in."""
