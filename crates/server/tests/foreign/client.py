"""Asks Envoy's rate limit service by grpcio: python3 client.py HOST:PORT TOKEN"""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import wrappers_pb2

Code = rls_pb2.RateLimitResponse.Code


def descriptor(hits=None, **entries):
    made = ratelimit_pb2.RateLimitDescriptor()
    for key, value in entries.items():
        made.entries.add(key=key, value=value)
    if hits is not None:
        made.hits_addend.CopyFrom(wrappers_pb2.UInt64Value(value=hits))
    return made


def main():
    address, token = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)

        def ask(*descriptors, hits=0, token=token):
            request = rls_pb2.RateLimitRequest(domain="edge", descriptors=descriptors, hits_addend=hits)
            metadata = [("authorization", f"Bearer {token}")]
            return stub.ShouldRateLimit(request, timeout=10, metadata=metadata)

        user = descriptor(user="py")
        for left in [2, 1, 0]:
            answer = ask(user)
            assert answer.overall_code == Code.OK, answer
            assert answer.statuses[0].limit_remaining == left, answer
        refused = ask(user)
        assert refused.overall_code == Code.OVER_LIMIT, refused
        assert refused.statuses[0].current_limit.requests_per_unit == 3, refused
        assert 0 < refused.statuses[0].duration_until_reset.seconds <= 1200, refused
        headers = {header.key: header.value for header in refused.response_headers_to_add}
        assert headers["ratelimit-policy"] == '"rph";q=3;w=3600', headers
        assert ask(descriptor(user="py2", hits=3)).overall_code == Code.OK
        assert ask(descriptor(user="py2")).overall_code == Code.OVER_LIMIT
        try:
            ask(user, token="wrong")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
        else:
            raise AssertionError("a wrong token was taken")
    print("ok")


main()
