"""How a file names the device it trains on."""

from __future__ import annotations

import ast

from hotlap.source.module import Source
from hotlap.source.names import spelling


def device_type(source: Source, holder: ast.AST) -> str:
    """An expression for the device's type ("cuda", "cpu"), usable anywhere in `holder`."""
    moves = [call for call in source.method_calls("to") if holder in source.ancestors(call)]
    named = [argument for call in moves for argument in call.args[:1] if _is_device(spelling(argument))]
    if not named:
        mentions = source.names.named.get("device", [])
        named = [name for name in mentions if _is_visible(source, name, holder)]
    if named:
        return _type_of(source, named[0])
    strings = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant)]
    uses_cuda = any(True for _ in source.method_calls("cuda")) or "cuda" in strings
    return '"cuda"' if uses_cuda else '"cpu"'


def _is_device(written: str | None) -> bool:
    return written is not None and "device" in written.rpartition(".")[2].lower()


def _is_visible(source: Source, name: ast.Name, holder: ast.AST) -> bool:
    found = source.names.lookup(name)
    return found is not None and (found[0] is source.names.module or found[0].node is holder)


def _type_of(source: Source, node: ast.expr) -> str:
    written, built = source.segment(node), source.value_of(node)
    if isinstance(built, ast.Call) and source.name_of(built.func) == "torch.device":
        return f"{written}.type"
    if _is_plain_string(built):
        return written
    # A parameter or an attribute may hold a string, a number or a torch.device: this takes them all.
    return f"{source.names.spelled('torch') or 'torch'}.device({written}).type"


def _is_plain_string(value: ast.AST) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_plain_string(value.body) and _is_plain_string(value.orelse)
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and ":" not in value.value
