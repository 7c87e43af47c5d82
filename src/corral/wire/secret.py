"""A value that must not leak: it cannot be printed, formatted, pickled or encoded by accident."""

import hmac
from typing import Any, ClassVar, Final, NoReturn, Self

MASK: Final = "[secret]"


class Secret:
    """Holds a credential. `reveal` alone gives the text; all else shows `[secret]` or refuses."""

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """The text itself; call it where it is used (a header, a connection), never to keep it."""
        return self.__text

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__text.encode(), other.__text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self.__text))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


class SecretText(Secret):
    """A secret field of a request: at least one character, at most ``longest``. Subclasses set the bound.

    `corral.wire.decode` makes it, so that no struct of a request ever holds a secret as plain text.
    """

    __slots__ = ()
    longest: ClassVar[int]

    @classmethod
    def sent(cls, value: object) -> Self:
        """The secret that a client has sent.

        Raises:
            ValueError: it is no text within the bounds; the message does not hold it.
        """
        if not isinstance(value, str):
            raise ValueError("Input should be a valid string")
        if not 1 <= len(value) <= cls.longest:
            raise ValueError(f"must have 1 to {cls.longest} characters")
        return cls(value)
