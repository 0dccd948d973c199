"""What each instruction of CPython's does to objects, so that no instruction passes unseen.

The table names every instruction that Dynamo interprets, on each Python that is served. A function
with an instruction that is not in the table is refused.
"""

from __future__ import annotations

import enum
import opcode
from typing import Any


class Does(enum.Enum):
    """What an instruction may do to objects that the traced code did not make."""

    STARTS = "begins to run the code of a function"
    MOVES = "nothing: moves values, makes containers, jumps without a question"
    READS = "reads a name or an attribute"
    CALLS = "calls what is on the stack"
    OPERATES = "asks special methods of its operands"
    WRITES = "sets or deletes a name, an attribute or an item"
    LEAVES = "ends the code of a function"


_NAMES = {
    Does.STARTS: "RESUME",
    Does.MOVES: """
        LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW LOAD_FAST_LOAD_FAST
        LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST
        STORE_FAST_MAYBE_NULL DELETE_FAST LOAD_CLOSURE LOAD_CONST LOAD_CONST_IMMORTAL
        LOAD_CONST_MORTAL LOAD_SMALL_INT LOAD_COMMON_CONSTANT LOAD_ASSERTION_ERROR
        MAKE_CELL COPY_FREE_VARS RETURN_GENERATOR MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE
        NOP NOT_TAKEN CACHE EXTENDED_ARG PRECALL KW_NAMES PUSH_NULL POP_TOP POP_ITER COPY SWAP
        TO_BOOL ROT_TWO ROT_THREE ROT_FOUR DUP_TOP DUP_TOP_TWO END_FOR END_SEND GEN_START
        JUMP_FORWARD JUMP_ABSOLUTE JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT
        JUMP_IF_NOT_EXC_MATCH POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE
        POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_IF_NONE
        POP_JUMP_IF_NOT_NONE
        BUILD_TUPLE BUILD_LIST BUILD_STRING BUILD_SLICE LIST_APPEND LIST_TO_TUPLE
        SETUP_LOOP SETUP_EXCEPT SETUP_FINALLY POP_BLOCK RAISE_VARARGS RERAISE CLEANUP_THROW
        PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH STOPITERATION_ERROR
        YIELD_VALUE INTERPRETER_EXIT
    """,
    Does.LEAVES: "RETURN_VALUE RETURN_CONST",
    Does.READS: """
        LOAD_GLOBAL LOAD_NAME LOAD_DEREF LOAD_CLASSDEREF LOAD_LOCALS LOAD_FROM_DICT_OR_DEREF
        LOAD_FROM_DICT_OR_GLOBALS LOAD_ATTR LOAD_METHOD LOAD_ATTR_SUPER LOAD_METHOD_SUPER
        LOAD_SUPER_ATTR LOAD_SPECIAL LOAD_BUILD_CLASS IMPORT_NAME EAGER_IMPORT_NAME IMPORT_FROM
    """,
    Does.CALLS: """
        CALL CALL_KW CALL_FUNCTION CALL_FUNCTION_KW CALL_FUNCTION_EX CALL_METHOD
        CALL_INTRINSIC_1 CALL_INTRINSIC_2
    """,
    Does.WRITES: """
        STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL STORE_NAME DELETE_NAME STORE_DEREF
        DELETE_DEREF
    """,
}
# Dynamo leaves TO_BOOL out: the jump or the `not` that follows asks.
_TESTS = """
    POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE
    POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE JUMP_IF_TRUE_OR_POP
    JUMP_IF_FALSE_OR_POP UNARY_NOT
"""
_TRUTH = ("__bool__", "__len__")
_WALK = ("__iter__",)
_NEXT = ("__next__",)
_KEY = ("__hash__", "__eq__")
_TEXT = ("__format__", "__str__", "__repr__")  # a class may leave one to the next
_ENTER, _EXIT = ("__enter__", "__exit__"), ("__exit__",)
_Asked = tuple[tuple[str, ...], ...]
_OPERATES: dict[str, _Asked] = {
    **dict.fromkeys(_TESTS.split(), (_TRUTH,)),
    "UNARY_POSITIVE": (("__pos__",),),
    "UNARY_NEGATIVE": (("__neg__",),),
    "UNARY_INVERT": (("__invert__",),),
    "BINARY_SUBSCR": (("__getitem__", "__missing__", "__class_getitem__"), ()),
    "BINARY_SLICE": (("__getitem__",), (), ()),
    "STORE_SUBSCR": ((), ("__setitem__",), ()),
    "STORE_SLICE": ((), ("__setitem__",), (), ()),
    "DELETE_SUBSCR": (("__delitem__",), ()),
    "CONTAINS_OP": ((), ("__contains__",)),
    "IS_OP": ((), ()),
    "GET_ITER": (_WALK,),
    "GET_YIELD_FROM_ITER": (_WALK,),
    "FOR_ITER": (_NEXT,),
    "SEND": (_NEXT, ()),
    "YIELD_FROM": (_NEXT, ()),
    "UNPACK_SEQUENCE": (_WALK,),
    "UNPACK_EX": (_WALK,),
    "LIST_EXTEND": (_WALK,),
    "SET_UPDATE": ((*_WALK, *_KEY),),
    "DICT_UPDATE": (("keys",),),
    "DICT_MERGE": (("keys",),),
    "SET_ADD": (_KEY,),
    "MAP_ADD": (_KEY, ()),
    "BUILD_CONST_KEY_MAP": (_KEY,),
    "BUILD_LIST_UNPACK": (_WALK,),
    "BUILD_TUPLE_UNPACK": (_WALK,),
    "BUILD_TUPLE_UNPACK_WITH_CALL": (_WALK,),
    "BUILD_MAP_UNPACK": (("keys",),),
    "BUILD_MAP_UNPACK_WITH_CALL": (("keys",),),
    "FORMAT_VALUE": (_TEXT,),
    "FORMAT_SIMPLE": (_TEXT,),
    "FORMAT_WITH_SPEC": (_TEXT, ()),
    "CONVERT_VALUE": (("__str__", "__repr__"),),
    "GET_LEN": (("__len__",),),
    "MATCH_MAPPING": ((),),
    "MATCH_SEQUENCE": ((),),
    "MATCH_KEYS": (("get",), ()),
    "MATCH_CLASS": ((), ("__instancecheck__",), ()),
    "SETUP_WITH": (_ENTER,),
    "BEFORE_WITH": (_ENTER,),
    "WITH_EXCEPT_START": (_EXIT, (), (), ()),
}
"""What each instruction asks of each of the values that it takes, the last of them on top."""

_BINARY = {
    "+": "add",
    "&": "and",
    "//": "floordiv",
    "<<": "lshift",
    "@": "matmul",
    "*": "mul",
    "%": "mod",
    "|": "or",
    "**": "pow",
    ">>": "rshift",
    "-": "sub",
    "/": "truediv",
    "^": "xor",
}
_COMPARED: dict[str, tuple[str, ...]] = {
    "<": ("__lt__",),
    ">": ("__gt__",),
    "<=": ("__le__",),
    ">=": ("__ge__",),
    "==": ("__eq__",),
    "!=": ("__ne__", "__eq__"),
}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""What Python asks of the right operand."""
_BY_ARGUMENT = ("BINARY_OP", "COMPARE_OP", "BUILD_SET", "BUILD_MAP")
DOES: dict[str, Does] = {
    **{name: does for does, names in _NAMES.items() for name in names.split()},
    **dict.fromkeys((*_OPERATES, *_BY_ARGUMENT), Does.OPERATES),
}
"""What an instruction does, by its name; Python's older instructions are not in the table."""


def asks(instruction: Any) -> _Asked:
    """The special methods that an instruction asks of each value that it takes from the stack.

    The last value is the one on top.
    """
    name, count = instruction.opname, int(instruction.arg or 0)
    if name == "COMPARE_OP":
        symbol: str = instruction.argval
        symbol = symbol.removeprefix("bool(").removesuffix(")")  # since Python 3.13
        return _COMPARED[symbol], _COMPARED[_TURNED.get(symbol, symbol)]
    if name == "BUILD_SET":
        return (_KEY,) * count
    if name == "BUILD_MAP":
        return (_KEY, ()) * count
    if name == "FORMAT_VALUE" and instruction.arg & 4:  # a format is on the stack as well
        return (*_OPERATES[name], ())
    if name != "BINARY_OP":
        return _OPERATES[name]
    symbol = opcode._nb_ops[instruction.arg][1]  # type: ignore[attr-defined]
    if symbol == "[]":  # since Python 3.14
        return _OPERATES["BINARY_SUBSCR"]
    operator = _BINARY[symbol.removesuffix("=")]
    own = (f"__{operator}__",)
    return ((f"__i{operator}__", *own) if symbol.endswith("=") else own), (f"__r{operator}__",)
