"""The guards of an entry as people read them are the stored ones, folded."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from npugx_cache.conditions import paths
from npugx_cache.entry.view import guards, numbered

LAYER = "self._modules['layers']._modules['{}']"
PARAMETER = "torch.nn.parameter.Parameter, float32[2, 2], stride=(2, 1), cpu, requires_grad"
STORED = [
    "torch_state['grad_mode'] == False",
    "type(self) is model.Decoder",
    "type(self._modules) is builtins.dict",
    "len(self._modules['norm']._forward_hooks) == 0",
    "len(self._modules['head']._forward_hooks) == 0",
    "len(self._modules['embed']._forward_hooks) == 0",
    "'forward' not in self._modules['norm'].__dict__",
    "'forward' not in self._modules['head'].__dict__",
    "'forward' not in self._modules['embed'].__dict__",
    "'str' not in vars(library.generic)",
    "'len' not in vars(library.generic)",
    "'zip' not in vars(library.generic)",
    "globals()['f'] is model.f (code 0123abcd)",
    "library.os is module os",
    "library.torch.float32 == torch float32",
    "func.__code__ == code a6ce430818b5",
    "check_tensor(x, torch.Tensor, float32[1, *], stride=(*, 1), cpu)",
    "x == 'layers[0]'",
    "y == 'layers[1]'",
    "'a[2]' in kwargs",
    "2 <= x.size(1)",
    "x.size(1) == y.size(1)",
    "self._modules['a.b'].scale == 1.0",
    "type(inner.<locals>.f) is builtins.function",
    *(
        check.replace("LAYER", LAYER.format(layer))
        for layer in range(4)
        for check in [
            "type(LAYER) is model.Layer",
            "type(LAYER._modules['up']) is torch.nn.modules.linear.Linear",
            "type(LAYER._modules['down']) is torch.nn.modules.linear.Linear",
            "type(LAYER._modules['gate']) is torch.nn.modules.linear.Linear",
            "LAYER._modules['up']._parameters['bias'] == None",
            f"check_tensor(LAYER._modules['up']._parameters['weight'], {PARAMETER})",
            f"LAYER.layer_idx == {layer}",
            f"LAYER.scale == {layer % 2}",
            "LAYER._modules['attn'].config is self.config",
        ]
    ),
    f"{LAYER.format(2)}.alone == 5",
    f"all_distinct(x, y, {', '.join(LAYER.format(i) + '.w' for i in range(4))})",
]
WRITTEN = [paths.as_written(line) for line in STORED]


def test_unfolded_guards_are_the_stored_ones():
    assert Counter(guards.unfold_checks(guards.fold_lines(WRITTEN))) == Counter(WRITTEN)


def text_of(lines):
    return "\n".join(["def guards():", *guards.text_of(guards.fold_lines(lines), "    ")])


def assertions(text):
    """What a text of guards asserts, one by one, with its loops unrolled."""
    (function,) = ast.parse(text).body

    class Named(ast.NodeTransformer):
        def __init__(self, name, value):
            self.name, self.value = name, value

        def visit_Name(self, node):
            return self.value if node.id == self.name else node

        def visit_GeneratorExp(self, node):
            return node

    def unrolled(statement, bound):
        if isinstance(statement, ast.For):
            for value in values(with_values(statement.iter, bound)):
                for inner in statement.body:
                    yield from unrolled(inner, [*bound, (statement.target.id, value)])
        else:
            assert isinstance(statement, ast.Assert)
            yield arguments_unrolled(with_values(statement.test, bound))

    def with_values(tree, bound):
        tree = ast.parse(ast.unparse(tree), mode="eval").body
        for name, value in reversed(bound):
            tree = Named(name, value).visit(tree)
        return tree

    def values(iterated):
        if isinstance(iterated, ast.Tuple):
            return iterated.elts
        assert iterated.func.id == "range"
        return [ast.Constant(n) for n in range(*(each.value for each in iterated.args))]

    def arguments_unrolled(test):
        if isinstance(test, ast.Call) and getattr(test.func, "id", "") == "all_distinct":
            test.args = sorted(
                (each for given in test.args for each in starred(given)), key=ast.unparse
            )
        return ast.unparse(test)

    def starred(given):
        if not isinstance(given, ast.Starred):
            return [given]
        (loop,) = given.value.generators
        name = loop.target.id
        return [Named(name, value).visit(copied(given.value.elt)) for value in values(loop.iter)]

    def copied(tree):
        return ast.parse(ast.unparse(tree), mode="eval").body

    return Counter(text for each in function.body for text in unrolled(each, []))


def test_the_text_of_folded_guards_asserts_each_stored_check_once():
    readable = [line for line in WRITTEN if "<locals>" not in line]
    one_by_one = Counter[str]()
    for line in readable:
        one_by_one += assertions(text_of([line]))
    assert assertions(text_of(readable)) == one_by_one
    assert one_by_one.total() == len(readable)


def test_siblings_are_a_loop_and_paths_are_written_as_people_write_them():
    text = text_of(WRITTEN)
    assert "    for i in range(4):\n        assert type(self.layers[i]) is model.Layer\n" in text
    assert "assert self.layers[i].layer_idx == i\n" in text
    assert "    for each in (self.norm, self.head, self.embed):\n" in text
    assert "*(self.layers[i].w for i in range(4))" in text
    assert "_modules[" not in text
    assert "assert globals()['f'] is model.f  # code 0123abcd\n" in text


def test_variables_of_loops_are_no_names_of_the_user():
    text = text_of(
        [f"{name} is x" for name in ("a[1].b", "c[2].d", "e.f")]
        + [f"self[{place}].key is i" for place in range(3)]
    )
    assert "for each in (a[1].b, c[2].d, e.f):\n        assert each is x\n" in text
    assert "for n in range(3):\n        assert self[n].key is i" in text


@pytest.mark.parametrize(
    "lines",
    [
        [f"type(m['{name}']) is model.C" for name in ("01", "00", "1")],
        [f"type(m._modules['{name}']) is model.C" for name in ("01", "00", "1")],
        [f"type(m._modules['{name}']) is model.C" for name in ("lambda", "in", "is")],
        [f"m._parameters['{name}'] is None" for name in ("lambda", "in", "is")],
        [f"type(m['a{name}, b']) is model.C" for name in ("1", "2", "3")],
        ["all_distinct(" + ", ".join(f"m['a{name}, b']" for name in range(30)) + ")"],
        ["all_distinct(m['a[0], b'], m['x, y'], i.w)"],
        ["all_distinct(i[0].w, i[1].w)"],
    ],
)
def test_odd_names_are_asserted_as_they_are_stored(lines):
    written = [paths.as_written(line) for line in lines]
    one_by_one = Counter[str]()
    for line in written:
        one_by_one += assertions(f"def guards():\n    assert {line}")
    assert assertions(text_of(written)) == one_by_one


CODE = "__import__('os').abort()"
HOSTILE = [
    f"x == 1; {CODE}",
    f"x\n{CODE}",
    f"x\r{CODE}",
    f"x\x0c{CODE}",
    f"x\x1e\x85\u2028{CODE}",
    f"x) and (\n{CODE}",
    "x \\",
    "x == '''",
    "(" * 900,
    "'f' not in x.__dict__, '\\",
    f"all_distinct(a, b)\n{CODE} # )",
    f"all_distinct(a, 'b)\n    {CODE}')",
    *(f"type(a['{text}']) is model.C" for text in ("\\", f"): {CODE} #", "x")),
    *(f"type(b[{n}]['\\']) is model.C" for n in range(3)),
    *(f"self[{n}] is a.<locals>.f" for n in range(3)),
    *(f"self[{n}] is a\n{CODE}" for n in range(3)),
]


@pytest.mark.parametrize("lines", [HOSTILE, *([line] for line in HOSTILE)])
def test_no_text_of_a_check_leaves_its_place(lines):
    text = text_of(lines)
    assert text.splitlines() == text.split("\n")
    (function,) = ast.parse(f"{text}\n    return").body
    assert {type(each) for each in function.body} <= {ast.Assert, ast.For, ast.Return}
    assert "id='__import__'" not in ast.dump(function)


def test_words_that_are_no_python_are_a_comment():
    assert "    # type(inner.<locals>.f) is builtins.function\n" in text_of(WRITTEN)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("self._modules['a']._modules['0']._parameters['weight']", "self.a[0].weight"),
        ("self._modules['rotary']._buffers['inv_freq']", "self.rotary.inv_freq"),
        ("self._modules['a.b'].x", "self['a.b'].x"),
        ("self._modules", "self._modules"),
        ("kwargs['x'].size(1)", "kwargs['x'].size(1)"),
    ],
)
def test_paths_are_written_as_people_write_them(path, written):
    assert paths.as_written(path) == written


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("self.layers[{}].w", "self.layers[i].w"),
        ("kwargs['cache'].layers[{}]", "kwargs['cache'].layers[i]"),
        ("w['self.layers[{}].w']", "w[f'self.layers[{i}].w']"),
        ("w[\"kwargs['cache'].layers[{}]\"]", "w[f\"kwargs['cache'].layers[{i}]\"]"),
        ("w['a[{}]'].b[{}]", None),
        ("a[7].b", None),
    ],
)
def test_numbered_siblings_are_one_expression(text, template):
    texts = [text.replace("{}", str(place)) for place in range(3)]
    found = numbered.template(texts, "i")
    assert (found and found.text) == template
    if found is not None:
        names = {"w": Names("w"), "self": Names("self"), "kwargs": Names("kwargs")}
        shown = [eval(found.text, {**names, "i": place}) for place in range(3)]
        assert shown == [eval(each, names) for each in texts]


class Names(str):
    """Stands for a value; what is reached from it is its path."""

    __slots__ = ()

    def __getattr__(self, name):
        return Names(f"{self}.{name}")

    def __getitem__(self, key):
        return Names(f"{self}[{key!r}]")


def test_modules_are_named_as_people_write_them():
    assert paths.of_module("L['self'].model.layers.0.mlp") == "self.model.layers[0].mlp"


@pytest.mark.parametrize(
    ("check", "of_the_call"),
    [
        ("type(self.config) is model.Config", True),
        ("check_tensor(kwargs['x'], torch.Tensor, float32[1], stride=(1), cpu)", True),
        ("2 <= kwargs['x'].size(1)", True),
        ("'forward' not in self.mlp.__dict__", True),
        ("type(self.config).__mro__[1].get is library.get (code 01)", False),
        ("globals()['f'] is model.f (code 0123abcd)", False),
        ("torch.nn.modules.linear.F is module torch.nn.functional", False),
    ],
)
def test_guards_on_values_of_the_call_are_told_from_others(check, of_the_call):
    assert guards.of_the_call(check, {"self", "kwargs"}) is of_the_call
