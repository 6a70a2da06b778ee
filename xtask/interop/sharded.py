"""Producers of zae-limiter 0.10 and later, whose buckets are in shards, and their aggregator.

usage: sharded.py table TABLE ENDPOINT_URL             creates the table as the package defines it
       sharded.py produce TABLE ENDPOINT_URL REQUESTS  acquires; doubles the shards of a bucket twice
       sharded.py aggregate TABLE ENDPOINT_URL         counts the batches of records on its input
Each prints JSON on its last line. That of `produce` is what was granted, in tokens by
"namespace entity resource limit", and how many requests were refused.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import warnings
from collections import Counter

REGION = "us-east-1"
NAMESPACES = ("default", "team-b")


async def repository_of(table: str, endpoint_url: str, namespace: str):
    from zae_limiter import Repository

    # Without the function that the package would deploy.
    return await Repository.open(namespace, stack=table, region=REGION, endpoint_url=endpoint_url, auto_update=False)


async def create(table: str, endpoint_url: str) -> dict:
    from zae_limiter import Repository

    repository = Repository(name=table, region=REGION, endpoint_url=endpoint_url)
    await repository.create_table()
    ids = {}
    for namespace in NAMESPACES:
        await repository._register_namespace(namespace)
        ids[namespace] = (await repository_of(table, endpoint_url, namespace))._namespace_id
    return ids


async def produce(table: str, endpoint_url: str, requests: int) -> dict:
    from zae_limiter import Limit, RateLimiter, RateLimitExceeded

    granted, refused, failed = Counter(), 0, Counter()
    # Some requests are refused.
    rpm = Limit.custom("rpm", capacity=20, refill_amount=20, refill_period_seconds=2)
    limits = [rpm, Limit.per_minute("tpm", 1_000_000)]
    for namespace in NAMESPACES:
        repository = await repository_of(table, endpoint_url, namespace)
        limiter = RateLimiter(repository=repository)
        for n in range(requests):
            # The first acquires of a bucket are those of all processes.
            entity = f"user-{n % 3}"
            if n in (requests // 3, requests // 3 * 2):
                await repository.bump_shard_count("user-0", "gpt-4", 1 if n < requests // 2 else 2)
            taken = Counter(rpm=1, tpm=random.randrange(1, 200))
            try:
                async with limiter.acquire(entity, "gpt-4", dict(taken), limits=limits) as lease:
                    if n % 5 == 0:
                        change = random.randrange(-50, 50)
                        await lease.adjust(tpm=change)
                        taken["tpm"] += change
                # It writes when the block ends, and may be refused only then.
                for limit, amount in taken.items():
                    granted[f"{namespace} {entity} gpt-4 {limit}"] += amount
            except RateLimitExceeded:
                refused += 1
            except Exception as error:  # It is reported; a test that expects none says so.
                failed[f"{type(error).__name__}: {error}"] += 1
        await limiter.close()
    return {"granted": granted, "refused": refused, "failed": failed}


def aggregate(table: str) -> dict:
    from zae_limiter_aggregator.processor import process_stream_records

    errors = Counter()
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin:
            # It logs to the standard output.
            with contextlib.redirect_stdout(nowhere):
                result = process_stream_records(json.loads(line), table, ["hourly", "daily"])
            errors.update(result.errors)
            print(json.dumps({"done": result.snapshots_updated, "errors": result.errors}), flush=True)
    return {"errors": errors}


def main(command: str, table: str, endpoint_url: str, *rest: str) -> dict:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint_url,
    }
    warnings.simplefilter("ignore")
    logging.disable()
    match command:
        case "table":
            return asyncio.run(create(table, endpoint_url))
        case "produce":
            return asyncio.run(produce(table, endpoint_url, int(rest[0])))
        case "aggregate":
            return aggregate(table)
    raise ValueError(f"no such command: {command}")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
