"""A client generated from the proto: submits a run, watches it, drops the connection, and goes on without gap or repeat.

Usage: client.py GENERATED_DIR ADDRESS WORKFLOW WORKSPACE. Prints one line of JSON.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

import grpc  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase  # noqa: E402
from wren.v1 import wren_pb2, wren_pb2_grpc  # noqa: E402


def main() -> None:
    _, _, address, workflow, workspace = sys.argv
    # grpc-core makes a unix socket's path the authority, which is no authority of a URI and is refused by the HTTP/2 server.
    channel = grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")])
    runs = wren_pb2_grpc.RunServiceStub(channel)

    services = sorted(ProtoReflectionDescriptorDatabase(channel).get_services())
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

    with open(workflow, "rb") as file:
        source = wren_pb2.SourceFile(path=workflow, content=file.read())
    bundle = wren_pb2.Bundle(entry_path=workflow, files=[source])
    request = wren_pb2.SubmitRunRequest(bundle=bundle, workspace=workspace, request_id="the-same")
    run = runs.SubmitRun(request).run
    again = runs.SubmitRun(request)

    seen = []
    after = 0
    # Each round watches a few events and then drops its stream in the middle.
    while True:
        stream = runs.WatchRun(wren_pb2.WatchRunRequest(run_id=run.run_id, after_tree_seq=after, include_descendants=True))
        ended = True
        for response in stream:
            seen.append(response.event.tree_seq)
            after = response.event.tree_seq
            if len(seen) % 7 == 0:
                stream.cancel()
                ended = False
                break
        if ended:
            break

    final = runs.GetRun(wren_pb2.GetRunRequest(run_id=run.run_id)).run
    print(
        json.dumps(
            {
                "services": services,
                "serving": health.status == health_pb2.HealthCheckResponse.SERVING,
                "deduplicated": again.deduplicated and again.run.run_id == run.run_id,
                "seen": seen,
                "outcome": wren_pb2.Outcome.Name(final.outcome),
            }
        )
    )


main()
