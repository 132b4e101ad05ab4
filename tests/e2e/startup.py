"""Plays one half of a start-up with the official OpenTelemetry SDK.

startup.py supervise ENDPOINT PROGRAM   starts a server as the Python supervisor does, waits for its ready line, and ends it
startup.py serve ENDPOINT               reports its own start-up as a Python server does
"""
import os, signal, subprocess, sys, time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

role, endpoint = sys.argv[1:3]
provider = TracerProvider(resource=Resource.create({"service.name": "python"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
tracer = provider.get_tracer("nemo.lens")
propagator = TraceContextTextMapPropagator()

if role == "supervise":
    whole = tracer.start_span("gym.startup")
    spawned = time.time_ns()
    span = tracer.start_span("gym.startup.server", context=set_span_in_context(whole), start_time=spawned)
    carrier = {}
    propagator.inject(carrier, context=set_span_in_context(span))
    environment = {
        **os.environ,
        "NEMO_GYM_OTEL_ENABLED": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "NEMO_GYM_STARTUP_SPAWN_NS": str(spawned),
        "NEMO_GYM_STARTUP_TRACEPARENT": carrier["traceparent"],
    }
    server = subprocess.Popen([sys.argv[3], "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline().startswith("listening on "), "not ready"
    span.end()
    whole.end()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0
else:
    parent = propagator.extract({"traceparent": os.environ["NEMO_GYM_STARTUP_TRACEPARENT"]})
    start = int(os.environ["NEMO_GYM_STARTUP_SPAWN_NS"])
    tracer.start_span("gym.server.startup", context=parent, start_time=start).end()
provider.shutdown()
print("done")
