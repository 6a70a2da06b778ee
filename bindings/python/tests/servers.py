"""Servers of the tests: an ASGI application, models with the API of OpenAI, and a connection to cut."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

# Dollars per token of gpt-4o-mini.
INPUT_USD, OUTPUT_USD = Decimal("0.00000015"), Decimal("0.0000006")


class Served:
    """An ASGI application on a port of loopback, with an event loop of its own."""

    def __init__(self, app: Any) -> None:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{any_port.getsockname()[1]}"
            port = any_port.getsockname()[1]
        # A connection that ends while a client takes it from its pool would be an error of the model.
        config = uvicorn.Config(app, port=port, log_level="error", loop="asyncio", timeout_keep_alive=600)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        end = time.monotonic() + 60
        while not self.server.started:
            assert self.thread.is_alive() and time.monotonic() < end, "the server does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)


class Models:
    """Answers with the usage that the prompt asks for, and keeps account."""

    def __init__(self) -> None:
        self.billed: dict[str, Decimal] = {}
        self.tokens: dict[str, int] = {}

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        wish = json.loads(body["messages"][0]["content"])
        if wish.get("status", 200) != 200:
            return JSONResponse({"error": {"message": "refused by the model"}}, wish["status"])
        input, output, user = wish["input"], wish["output"], wish["user"]
        await asyncio.sleep(wish.get("wait", 0.01))
        usage = {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
        self.billed[user] = self.billed.get(user, Decimal(0)) + input * INPUT_USD + output * OUTPUT_USD
        self.tokens[user] = self.tokens.get(user, 0) + input + output
        head = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o-mini-2024-07-18"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "hello"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

        async def events() -> AsyncIterator[str]:
            for n in range(3):
                choice = {"index": 0, "delta": {"content": "hello "}, "finish_reason": "stop" if n == 2 else None}
                yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
                await asyncio.sleep(30 if wish.get("broken") == "by the client" else 0.01)
                if wish.get("broken") == "by the model":
                    raise ConnectionError("the model breaks off")
            if (body.get("stream_options") or {}).get("include_usage"):
                last = {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
                yield f"data: {json.dumps(last)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


class Cable:
    """Passes connections on to a server, until it is cut."""

    def __init__(self, endpoint_url: str) -> None:
        self.to = int(endpoint_url.rsplit(":", 1)[1])
        self.whole, self.open = True, set[asyncio.StreamWriter]()
        # Seconds for which answers are held back.
        self.delay = 0.0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        server = self.run(asyncio.start_server(self.connect, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.whole:
            writer.transport.abort()
            return
        there, to = await asyncio.open_connection("127.0.0.1", self.to)
        self.open |= {writer, to}
        await asyncio.gather(self.copy(reader, to), self.copy(there, writer, answers=True))
        self.open -= {writer, to}

    async def copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False
    ) -> None:
        try:
            while data := await reader.read(65_536):
                await asyncio.sleep(self.delay if answers else 0)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def set(self, whole: bool) -> None:
        self.whole = whole
        if not whole:
            for writer in self.open:
                writer.transport.abort()
