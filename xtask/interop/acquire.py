"""Acquires from a bucket that another library acquires from, and says what it was granted.

usage: acquire.py TABLE ENDPOINT_URL REQUESTS
Prints {"granted": n, "refused": n} on the last line.
"""

import asyncio
import json
import sys

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository


async def main(table: str, endpoint_url: str, requests: int) -> None:
    repository = Repository(name=table, region="us-east-1", endpoint_url=endpoint_url)
    limits = [Limit.per_minute("rpm", 300), Limit.per_minute("tpm", 1_000_000)]
    counts = {"granted": 0, "refused": 0}
    async with RateLimiter(repository=repository) as limiter:
        for _ in range(requests):
            try:
                async with limiter.acquire("user-shared", "gpt-4", {"rpm": 1, "tpm": 100}, limits=limits):
                    pass
                # It writes when the block ends, and may be refused only then.
                counts["granted"] += 1
            except RateLimitExceeded:
                counts["refused"] += 1
    print(json.dumps(counts))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
