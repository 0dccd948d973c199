"""Calls cached functions; prints as JSON what is counted, and the spans if NPUGX_TEST_SPANS is set.

`fork`: also what a forked child counts.
"""

import json
import os
import sys

import torch

import npugx_cache
from npugx_cache import cache_compile

SPANS = None
if "NPUGX_TEST_SPANS" in os.environ:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    class Raises(SimpleSpanProcessor):
        """A fault of the user's tracing."""

        def on_start(self, span, parent_context=None):
            raise OSError("on_start")

        def on_end(self, span):
            raise OSError("on_end")

    SPANS = InMemorySpanExporter()
    provider = TracerProvider()
    if os.environ["NPUGX_TEST_SPANS"] == "faulty":
        provider.add_span_processor(Raises(SPANS))
    else:
        provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)


def double(x):
    return x * 2


def prints(x):
    print("a side effect that no graph has", file=sys.stderr)
    return x + 1


def told():
    found = npugx_cache.metrics()._asdict()
    return found | {"info": doubles.cache_info()._asdict()}


def in_child(work):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return json.loads(pipe.read())


def spans():
    return [
        {
            "name": span.name,
            "parent": span.parent and span.parent.span_id,
            "id": span.context.span_id,
            "status": [span.status.status_code.name, span.status.description],
            "events": [event.name for event in span.events],
            **span.attributes,
        }
        for span in SPANS.get_finished_spans()
    ]


doubles, prints = cache_compile(double), cache_compile(prints)
x = torch.ones(3)
assert torch.equal(doubles(x), x * 2)
assert torch.equal(doubles(x), x * 2)
assert torch.equal(doubles(torch.ones(3, 4)), torch.full((3, 4), 2.0))
assert torch.equal(prints(x), x + 1)
loaded = [name for name in sys.modules if name.startswith(("prometheus_client", "opentelemetry"))]
answer = {"metrics": told(), "loaded": loaded}
if SPANS is not None:
    answer["spans"] = spans()
    SPANS.clear()
    try:
        cache_compile(prints.__wrapped__, strict=True)(x)
    except npugx_cache.Uncacheable:
        answer["raised"] = spans()
if "fork" in sys.argv:
    child = in_child(lambda: [told(), bool(doubles(torch.ones(5)).sum() == 10), told()])
    answer |= {"child": child, "parent after": told()}
answer["text"] = npugx_cache.prometheus_text()
print(json.dumps(answer))
