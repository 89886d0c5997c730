"""Optional OpenTelemetry traces over what the product does. Spans hold our own words and numbers, never a message, an
argument or an error's text.

The tracer is ours alone and never the library's global one: the web framework and the MCP SDK would find that, and tell
addresses and errors that are our users' own. For the same reason our spans are not made current in the library's
context, from where the SDK would pass them on to users' servers.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from opentelemetry.trace import NoOpTracer, Span, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app import __version__
from app.errors import ConfigurationError, ToolscoutError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[Span | None] = ContextVar("span", default=None)


class Tracing:
    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] = lambda: None) -> None:
        """Without a tracer nothing is told to anybody."""
        self._tracer = tracer or NoOpTracer()
        self._close = close
        self.enabled = tracer is not None

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Below the span that is under way, or below the caller's own, if its request named one."""
        parent = _current.get()
        span = self._tracer.start_span(name, None if parent is None else set_span_in_context(parent))
        token = _current.set(span)
        try:
            yield span
        except BaseException as error:
            span.set_status(StatusCode.ERROR, _word_for(error))
            raise
        finally:
            _current.reset(token)
            span.end()

    async def aclose(self) -> None:
        """Off the event loop: what is still to be sent is waited for."""
        await asyncio.to_thread(self._close)


class Traceable(Protocol):
    @property
    def tracing(self) -> Tracing: ...


T = TypeVar("T", bound=Traceable)
Deed = Callable[Concatenate[T, P], Coroutine[Any, Any, R]]


def traced(name: str, *facts: str) -> Callable[[Deed[T, P, R]], Deed[T, P, R]]:
    """A span over a deed whose first parameter knows the tracing; `facts` are attributes of its outcome to tell."""

    def decorate(deed: Deed[T, P, R]) -> Deed[T, P, R]:
        @wraps(deed)
        async def within(first: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not first.tracing.enabled:
                return await deed(first, *args, **kwargs)
            with first.tracing.span(name) as span:
                outcome = await deed(first, *args, **kwargs)
                span.set_attributes(_told(outcome, facts))
                return outcome

        return within

    return decorate


def _told(outcome: object, facts: tuple[str, ...]) -> dict[str, Any]:
    values = {f"toolscout.{fact}": getattr(outcome, fact) for fact in facts}
    return {name: value for name, value in values.items() if value is not None}


def _word_for(error: BaseException) -> str:
    return error.code if isinstance(error, ToolscoutError) else type(error).__name__


class TraceContextMiddleware:
    """An ASGI layer: spans of a request that names a trace (`traceparent`) join it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            span = get_current_span(TraceContextTextMapPropagator().extract(headers))
            _current.set(span if span.get_span_context().is_valid else None)
        await self._app(scope, receive, send)


def open_tracing(endpoint: str | None) -> Tracing:
    """To a collector that speaks OTLP over HTTP; without one, nowhere."""
    if endpoint is None:
        return Tracing()
    try:
        # here, since they are an extra that most do without
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the packages are missing: pip install 'toolscout[otel]'"
        ) from error
    return make_tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))


def make_tracing(processor: "SpanProcessor") -> Tracing:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    resource = Resource.create({"service.name": "toolscout", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider.get_tracer("toolscout", __version__), provider.shutdown)
