"""A kernel made of its text, which anybody may have written: nothing of it runs but Triton's language."""

from __future__ import annotations

import ast
import importlib
import math
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import triton
import triton.language as tl

from grader.sandbox.contract import ContractError

# where a kernel may name what it finds
HOMES = re.compile(r"(triton\.language(\.\w+)*|triton|math)$")
OF_TRITON = ("language", "cdiv", "next_power_of_2")
BUILTINS = {each.__name__: each for each in (range, len, min, max, float, int, bool, abs, isinstance)}
# what a value in a kernel has; the interpreter keeps NumPy's array of it in its `handle`
# a release may lack some
_OF_VALUES = ("tensor", "tensor_descriptor", "dtype", "block_type", "pointer_type", "constexpr", "tuple")
MEMBERS = {name for kind in _OF_VALUES for name in dir(getattr(tl, kind, object)) if name[0] != "_"} - {"handle"} | {
    *("shape", "strides", "numel", "type", "dtype", "value", "element_ty", "primitive_bitwidth", "block_shape", "T")
}
STATEMENTS = (
    *(
        ast.FunctionDef,
        ast.arguments,
        ast.arg,
        ast.Return,
        ast.Assign,
        ast.AugAssign,
        ast.AnnAssign,
        ast.For,
        ast.While,
    ),
    *(ast.If, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Assert),
)
EXPRESSIONS = (
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Name, ast.List, ast.Tuple, ast.Starred, ast.JoinedStr, ast.FormattedValue),
    *(ast.ListComp, ast.comprehension, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
# what Triton's compiler finds where a kernel has no such name, or not yet
REACHING = {"getattr", "hasattr"}
RULE = "A kernel can use numbers, Triton's language and other kernels"


def found(home: str, name: str) -> Any:
    """A module of Triton's language, or with `name` what that has."""
    if not HOMES.match(home):
        raise ContractError(f"A kernel uses the module `{home}`. {RULE}")
    module = importlib.import_module(home)
    return member(module, name) if name else module


def member(module: ModuleType, name: str) -> Any:
    """Raises ContractError where it is none of the language."""
    value = getattr(module, name, None)
    # a function of Triton's is wrapped, as a kernel is
    origin = value.__name__ if isinstance(value, ModuleType) else getattr(getattr(value, "fn", value), "__module__", "")
    known = module is math or isinstance(value, int | float) or HOMES.match(str(origin))
    if value is None or name.startswith("_") or not known or (module is triton and name not in OF_TRITON):
        raise ContractError(f"A kernel uses `{module.__name__}.{name}`. {RULE}")
    return value


def kernel_of(text: str, line: int, names: dict[str, Any], unspecialised: list[Any], file: Path) -> Any:
    """The kernel that `text` defines, with the values of `names`; its text goes to `file`. ContractError by the `line` it begins in."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ContractError(f"The text of a kernel is no Python: {error}") from None
    if len(tree.body) != 1 or not isinstance(function := tree.body[0], ast.FunctionDef):
        raise ContractError("The text of a kernel is no function", line)
    function.decorator_list, function.returns = [], None  # they calculate where the function is made
    _Silent().visit(function)
    _Checked(function, names, line).all()
    file.write_text(ast.unparse(function) + "\n", encoding="utf-8")
    # its interpreter adds whatever it has itself, numpy for one, to the names of a kernel that lacks them
    hidden = dict.fromkeys(vars(_interpreter()).keys() - {"interpreter_semantic", "tl"})
    # it looks for the language in a kernel that only calls others as well, under any name
    scope = hidden | names | {"__name__": "kernels", "__builtins__": BUILTINS, "triton.language": tl}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    return triton.jit(scope[function.name], do_not_specialize=unspecialised)


def _interpreter() -> Any:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return object
    return importlib.import_module("triton.runtime.interpreter")


class _Silent(ast.NodeTransformer):
    """Takes out what prints, for which an interpreter's kernel may do things that no kernel can."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        prints = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        return ast.copy_location(ast.Pass(), node) if prints else node


class _Checked(ast.NodeVisitor):
    def __init__(self, function: ast.FunctionDef, names: dict[str, Any], line: int) -> None:
        self.function, self.names, self.line = function, names, line
        every = [*ast.walk(function)]
        self.own = {node.arg for node in every if isinstance(node, ast.arg)}
        self.own |= {node.id for node in every if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}

    def all(self) -> None:
        arguments = self.function.args
        for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            try:
                self._is_simple(arg.annotation)
            except ContractError:  # as `x: torch.Tensor`, which says nothing to Triton
                arg.annotation = None
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self._is_simple(default)
        for statement in self.function.body:
            self.visit(statement)
        for name in sorted({self.function.name, *self.own}):
            if name.startswith("__") or name in REACHING:
                self._stop(self.function, f"the name `{name}`")

    def _is_simple(self, node: ast.expr | None) -> None:
        """Of what is calculated where the function is made: a number, or a name of the language."""
        inner = node.operand if isinstance(node, ast.UnaryOp) else node
        if inner is None or isinstance(inner, ast.Constant):
            return
        if not isinstance(inner, ast.Name | ast.Attribute):
            self._stop(inner, f"`{ast.unparse(inner)}` as a default")
        self.visit(inner)

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, STATEMENTS + EXPRESSIONS) or (
            isinstance(node, ast.FunctionDef) or (isinstance(node, ast.keyword) and (node.arg or "").startswith("_"))
        ):
            self._stop(node, f"`{ast.unparse(node).splitlines()[0]}`")
        super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id.startswith("__") or not (node.id in self.own or node.id in self.names or node.id in BUILTINS):
            self._stop(node, f"`{node.id}`")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._meaning(node)

    def _meaning(self, node: ast.expr) -> Any:
        """The module that an expression is, or None for a value."""
        if isinstance(node, ast.Name):
            self.visit(node)
            value = None if node.id in self.own else self.names.get(node.id)
        elif isinstance(node, ast.Attribute):
            module = self._meaning(node.value)
            if module is None and node.attr not in MEMBERS:
                self._stop(node, f"`.{node.attr}`")
            value = module and member(module, node.attr)
        else:
            self.visit(node)
            return None
        return value if isinstance(value, ModuleType) else None

    def _stop(self, node: ast.AST, what: str) -> NoReturn:
        at = self.line + getattr(node, "lineno", 1) - 1
        raise ContractError(f"The kernel `{self.function.name}` uses {what}. {RULE}", at)
