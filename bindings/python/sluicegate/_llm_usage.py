"""The tokens of a call: estimated from its request, or as its response reports them."""

import json
from collections.abc import Mapping
from typing import Any

from sluicegate import Usage

# UTF-8 bytes of one token, at least: English has about four, and so has code.
BYTES_PER_TOKEN = 3
# The tokens of an image or a sound in a prompt.
MEDIA_TOKENS = 1_000
# The largest amount of a limit.
TOKENS_MAX = 10**15
# The fields of a request that bound its output.
_CAPS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "maxOutputTokens")
# The fields of a request that are billed as its prompt.
_PARTS = (
    *("messages", "prompt", "input", "system", "instructions", "contents", "tools", "functions"),
    *("response_format", "text", "systemInstruction"),
)
# The events of Anthropic begin their types so.
_ANTHROPIC = ("message_", "content_block_", "ping")


def tokens_of_bytes(length: int) -> int:
    return -(-length // BYTES_PER_TOKEN)


def output_tokens(data: Mapping[str, Any], unset: int) -> int:
    """The most output tokens of a call, or ``unset`` for each choice if it sets no bound."""
    gemini = data.get("generationConfig")
    places = (data, gemini if isinstance(gemini, Mapping) else {})
    caps = [_number(place.get(name)) for place in places for name in _CAPS]
    # Some servers read -1 as no bound.
    cap = max((cap for cap in caps if cap is not None and cap > 0), default=unset)
    choices = max(_number(data.get("n")) or 1, _number(data.get("best_of")) or 1, 1)
    prompts = data.get("prompt")
    if isinstance(prompts, list) and not all(isinstance(item, int) for item in prompts):
        choices *= max(len(prompts), 1)
    return min(cap * choices, TOKENS_MAX)


def _number(value: Any) -> int | None:
    """A whole number, also as LiteLLM reads it: ``9000.0`` or ``"9000"``."""
    try:
        return min(int(float(value)), TOKENS_MAX)
    except (TypeError, ValueError, OverflowError):
        return None


def prompt_tokens(data: Mapping[str, Any]) -> int:
    return sum(_estimated(data[part]) for part in _PARTS if data.get(part))


def _estimated(part: Any) -> int:
    """The tokens of a part of a prompt, rather too many than too few."""
    if isinstance(part, str):
        return tokens_of_bytes(len(part.encode(errors="replace")))
    if isinstance(part, list):
        # A prompt may be a list of token ids.
        return sum(1 if isinstance(item, int) else _estimated(item) for item in part)
    if isinstance(part, Mapping):
        is_media = any(word in str(part.get("type", "")) for word in ("image", "audio", "file", "video"))
        if is_media and "content" not in part and "text" not in part:
            return MEDIA_TOKENS
        # The role and the structure of a message are about four tokens. Longer keys name parameters.
        keys = sum(len(str(key)) for key in part)
        return max(4, tokens_of_bytes(keys)) + sum(_estimated(value) for value in part.values())
    return 1


def text_bytes(chunk: Any) -> int:
    """The bytes of text in a part of a stream; all bytes of a part of an unknown form."""
    if isinstance(chunk, bytes):
        return _event_bytes(chunk)
    if isinstance(chunk, Mapping):
        return len(json.dumps(chunk, default=str))
    texts: list[Any] = [chunk, getattr(chunk, "delta", None)]
    for choice in getattr(chunk, "choices", None) or []:
        delta = getattr(choice, "delta", None)
        texts += [getattr(choice, "text", None)]
        texts += [getattr(delta, name, None) for name in ("content", "reasoning_content")]
        functions = [getattr(call, "function", None) for call in getattr(delta, "tool_calls", None) or []]
        texts += [getattr(function, "arguments", None) for function in functions]
    return sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str))


def _event_bytes(chunk: bytes) -> int:
    """The bytes of text in events of Anthropic; of other lines, all of them."""
    length = 0
    for line in chunk.splitlines():
        try:
            event = json.loads(line.removeprefix(b"data:"))
        except ValueError:
            event = None
        if isinstance(event, dict) and str(event.get("type")).startswith(_ANTHROPIC):
            delta = event.get("delta")
            names = ("text", "thinking", "partial_json")
            texts = [delta.get(name) for name in names] if isinstance(delta, dict) else []
            length += sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str))
        elif not line.startswith(b"event:"):
            length += len(line)
    return length


def reported(kwargs: Mapping[str, Any], response: Any) -> Usage | None:
    """The usage that the model reports. LiteLLM gives it the form of OpenAI, whatever the model; if it
    reports none, LiteLLM makes one of zeros."""
    logged = (kwargs.get("standard_logging_object") or {}).get("metadata") or {}
    found = logged.get("usage_object") or getattr(response, "usage", None)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        found = found.model_dump()

    def count(*names: str, of: Mapping[str, Any]) -> int:
        return next((of[name] for name in names if isinstance(of.get(name), int)), 0)

    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    cached = count("cached_tokens", of=details)
    written = count("cache_creation_tokens", of=details) or count("cache_creation_input_tokens", of=found)
    prompt = count("prompt_tokens", "input_tokens", of=found)
    output = count("completion_tokens", "output_tokens", of=found)
    if prompt + output == 0:
        return None
    return Usage(
        input=max(prompt - cached - written, 0), output=output, cached_input=cached, cache_write=written
    )
