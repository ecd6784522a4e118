"""How a file names the device it trains on."""

from __future__ import annotations

import ast

from hotlap.source.bodies import is_main_guard
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.transfers import uses_device


def device_type(source: Source, holder: ast.AST, model_call: ast.Call) -> str:
    """An expression for the device's type ("cuda", "cpu"), usable anywhere in `holder`; where no name for it can be
    used there, the device of the model's own parameters."""
    moves = [call for call in source.method_calls("to") if holder in source.ancestors(call)]
    named = [argument for call in moves for argument in call.args[:1] if _is_device(spelling(argument))]
    if not named:
        mentions = source.names.named.get("device", [])
        named = [name for name in mentions if _is_visible(source, name, holder)]
    if named:
        return _type_of(source, named[0])
    if not uses_device(source):
        return '"cpu"'
    model = spelling(model_call.func)
    return f"next({model}.parameters()).device.type" if model and not any(source.method_calls("cuda")) else '"cuda"'


def _is_device(written: str | None) -> bool:
    return written is not None and "device" in written.rpartition(".")[2].lower()


def _is_visible(source: Source, name: ast.Name, holder: ast.AST) -> bool:
    found = source.names.lookup(name)
    if found is None or found[0] is not source.names.module:
        return found is not None and found[0].node is holder
    # What a file binds only when it is run (`if __name__ == ...`) is not there for who imports it.
    stores = [use for use in source.uses(name) if isinstance(use.ctx, ast.Store)]
    return holder is source.tree or any(not any(map(is_main_guard, source.ancestors(use))) for use in stores)


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
