"""Texts with sets in them, such as an error message that traced code makes and does not use.

The order of the elements in such a text becomes a condition when Dynamo reads the text, and not
before. Libraries make a message for each check of an argument, and most messages are never read:
a condition on the order would cost a miss in every process. Importing this module loads the
compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo.variables import constant

from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.set_history import Sets

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Observation


class TextOfSets(constant.ConstantVariable):
    """A constant text; `walks` are the observations that follow from reading the text."""

    _nonvar_fields = {"text", "walks", *constant.ConstantVariable._nonvar_fields}  # noqa: RUF012

    def __init__(self, *, text: str, walks: tuple[Observation, ...], **kwargs: Any) -> None:
        self.walks = walks
        super().__init__(text, **kwargs)

    @property
    def value(self) -> str:
        recorder = observation.current()
        if recorder is not None:
            recorder.state(Sets).note(self.walks)
        return self.text

    @value.setter
    def value(self, text: str) -> None:
        self.text = text

    def python_type(self) -> type:
        """The type alone says nothing about the order."""
        return str


def defer_walks(sets: Sets, text: Any, walks: list[Observation]) -> Any:
    """Let the walks with which a text was made be noted when the text is read."""
    if walks and type(text) is constant.ConstantVariable and type(text.value) is str:
        return TextOfSets(text=text.value, walks=tuple(walks))
    sets.note(walks)
    return text
