"""Says in words how two global torch states differ. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_AUTOCAST = "autocast_state"
_KEYS_OF_THREAD = frozenset({"tls_include", "tls_exclude"})
_SWITCHES = {
    "grad_mode": "torch.is_grad_enabled()",
    "inference_mode": "torch.is_inference_mode_enabled()",
    "allow_tf32": "torch.backends.cuda.matmul.allow_tf32",
    "deterministic_algorithms": "torch.are_deterministic_algorithms_enabled()",
    "default_dtype": "torch.get_default_dtype()",
    "default_device": "torch.get_default_device()",
}
"""How a user asks for a part of the state; the other parts are shown by the name torch gives."""


def differences(recorded: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    """One text for each part of the state that a user can set and that differs."""
    differ = {name for name in (*recorded, *live) if recorded.get(name) != live.get(name)}
    if "inference_mode" in differ:
        differ.discard("grad_mode")  # inference mode turns grad mode off, too
    # Autocast and inference mode set the dispatch keys of the thread, which nobody sets by hand.
    for name in sorted(differ - _KEYS_OF_THREAD or differ):
        was, now = recorded.get(name), live.get(name)
        if name == _AUTOCAST and isinstance(was, dict) and isinstance(now, dict):
            yield from _of_autocast(was, now)
        else:
            what = _SWITCHES.get(name, f"global torch state {name}")
            yield f"{what} was {_text_of_setting(name, was)}, is {_text_of_setting(name, now)}"


def _of_autocast(recorded: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    was, now = recorded.get("devices", {}), live.get("devices", {})
    for kind in was:
        if was[kind] != now.get(kind):
            yield f"torch.autocast({kind!r}) was {was[kind]}, is {now.get(kind)}"
    if recorded.get("cached_enabled") != live.get("cached_enabled"):
        was_cached, is_cached = recorded.get("cached_enabled"), live.get("cached_enabled")
        yield f"torch.is_autocast_cache_enabled() was {was_cached}, is {is_cached}"


def _text_of_setting(name: str, value: object) -> str:
    return str(value) if name == "default_dtype" else repr(value)
