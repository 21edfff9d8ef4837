"""What `serve` says once it is ready: where it is, and what to type next."""

from __future__ import annotations

import json
import shlex

_MIB = 1 << 20


LOCAL_NAME = "localhost"
"""What a server on a Unix socket is called in URLs."""


def base_url(host: str, port: int, scheme: str = "http") -> str:
    """The URL under which this machine reaches the server. An address that means "all of them" becomes loopback."""
    names = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    name = names.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{name}:{port}"


def greeting(
    url: str,
    model: str,
    *,
    max_model_len: int,
    load_s: float,
    resident_bytes: int,
    needs_key: bool,
    uds: str | None = None,
    generates: bool = True,
    has_ui: bool = False,
) -> str:
    """A request to copy into a shell, and one in Python unless it goes through a Unix socket.

    An API key is only ever named, never shown.
    """
    asked = {"messages": [{"role": "user", "content": "Say hello"}]} if generates else {"input": "A text"}
    path = "chat/completions" if generates else "embeddings"
    body = json.dumps({"model": model} | asked)
    key_header = ' -H "Authorization: Bearer $CHAIRLIFT_API_KEY"' if needs_key else ""
    key = 'os.environ["CHAIRLIFT_API_KEY"]' if needs_key else '"none"'
    imports = "import os\n\n  " if needs_key else ""
    page = f"\nWatch it{' and chat' if generates else ''} in a browser: {url}/ui\n" if has_ui and uds is None else ""
    through = "" if uds is None else f" --unix-socket {shlex.quote(uds)}"
    shell = f"""Chairlift serves {model} at {uds or url}
({max_model_len} tokens of context, loaded in {load_s:.1f} s, {resident_bytes // _MIB} MiB)
{page}
Try it from a shell:

  curl{through} {url}/v1/{path} -H "Content-Type: application/json"{key_header} -d {shlex.quote(body)}
"""
    if uds is not None:
        return shell
    return f"""{shell}
or from Python (pip install openai):

  {imports}from openai import OpenAI

  client = OpenAI(base_url="{url}/v1", api_key={key})
{_example(json.dumps(model), generates)}"""


def _example(model: str, generates: bool) -> str:
    """The lines that ask something."""
    if not generates:
        return f"""  print(client.embeddings.create(model={model}, input="A text").data[0].embedding)
"""
    return f"""  messages = [{{"role": "user", "content": "Say hello"}}]
  for chunk in client.chat.completions.create(model={model}, messages=messages, stream=True):
      print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
