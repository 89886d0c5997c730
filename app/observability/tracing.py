"""Optional OpenTelemetry traces of the use cases. Spans contain fixed words and numbers, never a message, an argument
or the text of an error.

The tracer is private and never the library's global one: the web framework and the MCP SDK would use a global tracer
and record addresses and errors of users. For the same reason a span is not made current in the library's context, from
where the SDK would pass it on to users' servers.
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
from starlette.types import Scope

from app import __version__
from app.errors import ConfigurationError, ToolscoutError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[Span | None] = ContextVar("span", default=None)


class Tracing:
    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] = lambda: None) -> None:
        """Without a tracer no spans are recorded."""
        self._tracer = tracer or NoOpTracer()
        self._close = close
        self.enabled = tracer is not None

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Start a child of the current span, or of the caller's span if the request named one."""
        parent = _current.get()
        span = self._tracer.start_span(name, None if parent is None else set_span_in_context(parent))
        token = _current.set(span)
        try:
            yield span
        except BaseException as error:
            span.set_status(StatusCode.ERROR, _error_code(error))
            raise
        finally:
            _current.reset(token)
            span.end()

    async def aclose(self) -> None:
        """Close off the event loop: closing waits until pending spans are sent."""
        await asyncio.to_thread(self._close)


class Traceable(Protocol):
    @property
    def tracing(self) -> Tracing: ...


T = TypeVar("T", bound=Traceable)
AsyncFunction = Callable[Concatenate[T, P], Coroutine[Any, Any, R]]


def trace_call(name: str, *attributes: str) -> Callable[[AsyncFunction[T, P, R]], AsyncFunction[T, P, R]]:
    """Decorate a function whose first parameter has a `tracing` attribute with a span.

    `attributes` are attributes of the function's result to record in the span.
    """

    def decorate(function: AsyncFunction[T, P, R]) -> AsyncFunction[T, P, R]:
        @wraps(function)
        async def wrapper(first: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not first.tracing.enabled:
                return await function(first, *args, **kwargs)
            with first.tracing.span(name) as span:
                result = await function(first, *args, **kwargs)
                span.set_attributes(_span_attributes(result, attributes))
                return result

        return wrapper

    return decorate


def _span_attributes(result: object, names: tuple[str, ...]) -> dict[str, Any]:
    values = {f"toolscout.{name}": getattr(result, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _error_code(error: BaseException) -> str:
    return error.code if isinstance(error, ToolscoutError) else type(error).__name__


def join_trace(scope: Scope) -> None:
    """Let the spans of a request with a `traceparent` header join that trace."""
    span = get_current_span(TraceContextTextMapPropagator().extract(Headers(scope=scope)))
    _current.set(span if span.get_span_context().is_valid else None)


def open_tracing(endpoint: str | None) -> Tracing:
    """Send spans to an OTLP collector over HTTP. Without an endpoint, record none."""
    if endpoint is None:
        return Tracing()
    try:
        # Imported here because they belong to an optional extra.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but its packages are missing: pip install 'toolscout[otel]'"
        ) from error
    return make_tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))


def make_tracing(processor: "SpanProcessor") -> Tracing:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    resource = Resource.create({"service.name": "toolscout", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider.get_tracer("toolscout", __version__), provider.shutdown)
