"""Which of many short texts fit a query best: BM25 over words, without a model and without a store. Pure."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

# The usual values: how soon more of the same word stops to count, and how much long texts are held back.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.75
_QUERY_CHARACTERS: Final = 20_000
_WORD: Final = re.compile(r"[^\W_]+")
# Taken off one after the other for as long as a word is left: coarse, but alike for all forms of a word.
_SUFFIXES: Final = ("ing", "ion", "at", "ed", "er", "s", "e", "y", "i")
_STEM: Final = 3


class Ranking:
    """Texts, ready to be searched. A word counts the more the fewer texts have it."""

    def __init__(self, texts: Sequence[str]) -> None:
        known: dict[str, tuple[str, ...]] = {}
        counts = [Counter(words(text, known)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        average = sum(lengths) / len(lengths) if lengths else 0.0
        self._weights: dict[str, list[tuple[int, float]]] = {}
        for index, count in enumerate(counts):
            held_back = _SATURATION * (1 - _LENGTH + _LENGTH * lengths[index] / (average or 1.0))
            for word, times in count.items():
                weight = times * (_SATURATION + 1) / (times + held_back)
                self._weights.setdefault(word, []).append((index, weight))
        self._size = len(texts)

    def best(self, query: str, most: int) -> list[int]:
        """The positions of the texts that share words with the query, best first, `most` of them at most."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words(query[:_QUERY_CHARACTERS])):
            found = self._weights.get(word, [])
            rarity = math.log(1 + (self._size - len(found) + 0.5) / (len(found) + 0.5))
            for index, weight in found:
                scores[index] = scores.get(index, 0.0) + rarity * weight
        return sorted(scores, key=lambda index: (-scores[index], index))[:most]


def words(text: str, known: dict[str, tuple[str, ...]] | None = None) -> Iterator[str]:
    """The words of a text in the form in which they are compared. `known` is filled with what was found.

    Of scripts that put no blanks between words, or endings behind them, pairs of characters are taken.
    """
    known = {} if known is None else known
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word not in known:
            known[word] = _compared(word)
        yield from known[word]


def _compared(word: str) -> tuple[str, ...]:
    if word.isascii():
        return (_stem(word),)
    if any(unicodedata.category(character) == "Lo" for character in word):
        return tuple(word[at : at + 2] for at in range(max(1, len(word) - 1)))
    return (word,)


def _stem(word: str) -> str:
    shorter = next(
        (s for s in _SUFFIXES if word.endswith(s) and len(word) - len(s) >= _STEM),
        "",
    )
    return _stem(word.removesuffix(shorter)) if shorter else word
