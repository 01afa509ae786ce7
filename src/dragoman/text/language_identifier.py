"""Language identifier py3langid, whose tables all its users share."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from tempfile import gettempdir
from threading import Lock
from typing import Any

import numpy as np

from dragoman.errors import WriteError

MAX_READINGS = 3
"""Readings of the tables, a second each. The last one keeps the scores of all languages, 27 MB."""


class _Tables:
    """Identifier of the languages that were asked for. Its automaton takes 40 MB.

    lock: held while the tables are read: threads that ask at the same time would each read them
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._identifier: Any = None
        self._languages: frozenset[str] | None = frozenset()
        self._num_readings = 0

    def get(self, languages: Collection[str] | None) -> Any:
        """Return an identifier that knows these languages, and others that were asked for; None for all languages.

        Raises ImportError without py3langid, and WriteError if the folder for temporary files has no room for its model.
        """
        with self._lock:
            if self._languages is not None and (languages is None or not self._languages.issuperset(languages)):
                self._read(languages)
            return self._identifier

    def _read(self, languages: Collection[str] | None) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        try:
            complete = LanguageIdentifier.from_model_file(MODEL_FILE)
        except OSError as error:  # it unpacks its model there
            raise WriteError(
                f"{gettempdir()}: has no room for the model of py3langid ({error.strerror}); free some, or set TMPDIR",
                code="disk-full",
            ) from error
        if (former := self._identifier) is not None:  # identifiers that were made before keep its automaton
            complete.tk_nextmove, complete.tk_output, complete.tk_row = former.tk_nextmove, former.tk_output, former.tk_row
        self._num_readings += 1
        if languages is None or self._languages is None or self._num_readings == MAX_READINGS:
            self._identifier, self._languages = complete, None
        else:
            self._languages |= frozenset(languages)
            self._identifier = _restrict(complete, self._languages)


def _restrict(identifier: Any, languages: Collection[str], *, norm_probs: bool = False) -> Any:
    """Return an identifier of some languages that shares the automaton, and refers to no scores of others."""
    columns = [column for column, label in enumerate(identifier.nb_classes) if label in languages]
    scores, priors = np.ascontiguousarray(identifier.nb_ptc[:, columns]), identifier.nb_pc[columns]
    labels = [identifier.nb_classes[column] for column in columns]
    automaton = identifier.tk_nextmove, identifier.tk_output
    return type(identifier)(scores, priors, labels, *automaton, norm_probs=norm_probs, tk_row=identifier.tk_row)


_TABLES = _Tables()


def make_identifier(languages: Collection[str] | None = None, *, norm_probs: bool) -> Any:
    """Return an identifier of those of the languages that py3langid knows, its `labels`, or of all.

    The first call takes a second.
    norm_probs: whether it returns probabilities, not log-probabilities

    Raises ImportError without py3langid, and WriteError if the folder for temporary files has no room for its model.
    """
    identifier = _TABLES.get(languages)
    known = set(identifier.labels) if languages is None else set(languages) & set(identifier.labels)
    if norm_probs:
        return _restrict(identifier, known, norm_probs=True)
    restricted = copy(identifier)  # a new object needs 4 MB, for each of many pairs
    restricted.set_languages(known)
    restricted.nb_ptc = np.ascontiguousarray(restricted.nb_ptc)  # the rows of a selection are slow to read
    return restricted
