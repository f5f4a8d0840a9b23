"""The routes. Each checks what it can before any work, and answers in OpenAI's form, errors included."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loopwright.serving.answer import LoopNotifier, ServedRequest
from loopwright.serving.guard import Guard, throw_away
from loopwright.serving.models import ServedModel, chat_ids, find_model
from loopwright.serving.observe import RECORD, Metrics
from loopwright.serving.openai_json import Shape, written
from loopwright.serving.schema import TOKENIZE, ParsedRequest, Refusal, ServerLimits, parse_request, read_fields
from loopwright.serving.site import INDEX, SAFE, SiteView, StaticFile, StaticSite, Turns, read_files
from loopwright.serving.sse import EventStream, watched

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1
LARGE_BODY = 32_768  # bytes: what is larger is parsed in a thread, beside the others' answers


class Service:
    """What all routes share: the models, who may ask, and the numbers."""

    def __init__(self, models: Mapping[str, ServedModel], guard: Guard, limits: ServerLimits) -> None:
        self.models, self.guard, self.limits = models, guard, limits
        self.metrics = Metrics(models)
        self.draining = False
        self._bell: LoopNotifier | None = None
        self.turns = Turns()

    def notifier(self) -> LoopNotifier:
        """Returns the way from the engines' threads into the event loop."""
        if self._bell is None:
            self._bell = LoopNotifier(asyncio.get_running_loop())
        return self._bell

    # routes

    async def health(self, request: Request) -> Response:
        """Whether requests are taken; what is served, to who may know."""
        if self.draining:
            raise Refusal("the server is shutting down", status=503, code="shutting_down")
        return _json({"status": "ok"} | ({"models": list(self.models)} if self.guard.trusts(request.headers) else {}))

    async def numbers(self, request: Request) -> Response:
        """The page for Prometheus."""
        self.guard.check_caller(request.headers)
        page, kind = self.metrics.page()
        return Response(page, headers={"content-type": kind})

    async def list_models(self, request: Request) -> Response:
        """The models, each with its length and depths."""
        self.guard.check_caller(request.headers)
        return _json({"object": "list", "data": [model.card() for model in self.models.values()]})

    async def show_model(self, request: Request) -> Response:
        """One model."""
        self.guard.check_caller(request.headers)
        return _json(find_model(self.models, request.path_params["name"]).card())

    async def tokenize(self, request: Request) -> Response:
        """A prompt or messages as token ids."""
        fields = await self._read(request, lambda body: read_fields(body, TOKENIZE))
        model = find_model(self.models, fields.get("model"))
        if ("prompt" in fields) == ("messages" in fields):
            raise Refusal("prompt: give it or messages, one of them", param="prompt")

        def encode() -> list[int]:
            if "messages" in fields:
                return chat_ids(model.words, fields["messages"], opening=fields.get("add_generation_prompt", True))
            return model.encode(fields["prompt"], special=fields.get("add_special_tokens", True))

        ids = await model.read(encode)
        return _json({"count": len(ids), "tokens": ids, "max_model_len": model.max_model_len})

    async def chat(self, request: Request) -> Any:
        """Answers messages."""
        return await self._complete(request, chat=True)

    async def complete(self, request: Request) -> Any:
        """Continues prompts."""
        return await self._complete(request, chat=False)

    async def _complete(self, request: Request, *, chat: bool) -> Any:
        self._check_open()
        parsed: ParsedRequest = await self._read(request, lambda body: parse_request(body, chat=chat))
        model = find_model(self.models, parsed.model)
        self.limits.check_choices(max(len(parsed.prompts), 1), parsed.n)
        self.limits.check_depth(parsed.options.setdefault("depth", model.depth), model.max_depth)
        if not model.engine.model.config.is_looped:
            del parsed.options["depth"]
        texts = chat or any(isinstance(prompt, str) for prompt in parsed.prompts)
        prompts = await model.read(lambda: model.prompt_ids(parsed)) if texts else model.prompt_ids(parsed)
        constraints = await _aside("constrain" in parsed.options, lambda: model.constraints(parsed, len(prompts) * parsed.n))
        # nothing is awaited from here to the submission: what was free stays free
        self.limits.check_queue(len(prompts) * parsed.n, model.engine.open_requests, model.rows, model.seconds)
        job = ServedRequest(model, parsed, prompts, self.notifier(), constraints)
        shape, record = Shape(job), request.scope[RECORD]
        record |= {"id": shape.id, "model": model.name, "depth": parsed.options.get("depth", 1), "stream": parsed.stream}

        def end() -> None:
            self.metrics.count(job, time.perf_counter() - job.begun)
            record.update(job.usage, **({"gone": True} if job.gone else {}))

        if parsed.stream:
            return EventStream(job, shape, end)
        try:
            async with watched(job, request.receive):
                async for fresh in job.news():
                    for answer, delta in fresh:
                        shape.keep(answer, delta)
        finally:
            end()
        if job.gone:
            raise Refusal("client disconnected", status=499)
        headers = {"content-type": "application/json", "x-request-id": shape.id}
        return Response(await written(shape.whole()), headers=headers)

    async def view(self, request: Request, view: SiteView) -> Response:
        """Answers a view of a page, computed in a thread when its turn comes, unless the client has disconnected."""
        self._check_open()
        fields = await self._read(request, lambda body: read_fields(body, view.fields))
        model = find_model(self.models, fields.get("model"))
        request.scope[RECORD] |= {"model": model.name}
        async with self.turns.turn():
            if await request.is_disconnected():
                raise Refusal("client disconnected", status=499)
            try:
                content = await asyncio.to_thread(lambda: _encoded(view.work(model, fields)))
            except ValueError as error:
                raise Refusal(str(error)) from None
        return Response(content, headers={"content-type": "application/json", "cache-control": "no-store"})

    async def send_file(self, request: Request, file: StaticFile) -> Response:
        """A file of the page. It holds nothing of the models, so it needs no key."""
        self.guard.check_host(request.headers)
        headers = {"content-type": file.kind, "etag": file.tag, **SAFE}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers)

    def _check_open(self) -> None:
        if self.draining:
            raise Refusal("the server is shutting down", status=503, code="shutting_down", headers={"retry-after": "10"})

    async def _read(self, request: Request, parse: Any) -> Any:
        try:
            self.guard.check_caller(request.headers)
        except Refusal:
            await throw_away(request.receive)
            raise
        body = await self.guard.body(request.headers, request.receive)
        return await _aside(len(body) > LARGE_BODY, lambda: parse(body))


async def _aside(large: bool, work: Any) -> Any:
    """Returns what `work` returns; where it is large, another thread does it."""
    return await asyncio.to_thread(work) if large else work()


def _json(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoded(data), status, headers={"content-type": "application/json", **(headers or {})})


def _encoded(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()


async def _refused(request: Request, error: Exception) -> Response:
    """Answers a refusal, ours or the router's, in one form."""
    if isinstance(error, HTTPException):
        said = f"{request.url.path[:100]!r}: {error.detail}"
        error = Refusal(said, status=error.status_code, headers=error.headers)
    assert isinstance(error, Refusal)
    request.scope.setdefault(RECORD, {})["error"] = str(error)
    return _json(error.body(), status=error.status, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answers an unexpected error; its traceback goes to the server's own log."""
    said = Refusal("an error of the server; its log has the traceback", status=500)
    return _json(said.body(), status=500, headers={"connection": "close"})  # uvicorn closes it, and a client would send into that


def _site_routes(service: Service, site: StaticSite) -> list[Route]:
    """Returns the routes of a page: its files, index.html at /, and its views."""
    routes = []
    for name, file in read_files(site.folder).items():
        send = partial(service.send_file, file=file)
        routes.append(Route("/" if name == INDEX else f"/explorer/{name}", send, methods=["GET"]))
    return routes + [Route(view.path, partial(service.view, view=view), methods=["POST"]) for view in site.views]


class Origins(CORSMiddleware):
    """Answers the questions of web pages. The names of headers come back in the answer, so they must be names."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answers a page that asks which headers it may send; refused where these are no names of headers."""
        names = [name.strip(" \t") for name in request_headers.get("access-control-request-headers", "").split(",")]
        if not all(HEADER_NAME.fullmatch(name) for name in names if name):
            return Response("Disallowed CORS headers", 400, media_type="text/plain")
        return super().preflight_response(request_headers)


def make_app(service: Service, *, cors: Sequence[str] = (), site: StaticSite | None = None) -> Starlette:
    """Returns the ASGI app. `cors` are the origins whose web pages may ask; none by default. `site` is the page at /."""
    routes = [
        Route("/health", service.health, methods=["GET"]),
        Route("/metrics", service.numbers, methods=["GET"]),
        Route("/v1/models", service.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", service.show_model, methods=["GET"]),
        Route("/v1/tokenize", service.tokenize, methods=["POST"]),
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/v1/completions", service.complete, methods=["POST"]),
    ]
    routes += [] if site is None else _site_routes(service, site)
    # whatever headers a client of these origins sends: none but the key and the content type is read
    allowed = Middleware(
        Origins, allow_origins=list(cors), allow_methods=["GET", "POST"], allow_headers=["*"], allow_private_network=True,
        expose_headers=["x-request-id", "retry-after"],
    )  # fmt: skip
    handlers: Any = {Refusal: _refused, HTTPException: _refused, Exception: _failed}
    return Starlette(routes=routes, middleware=[allowed] if cors else [], exception_handlers=handlers)
