// rate-limiter-flexible as a contestant of `cargo xtask compare`.
//
// usage: node flexible.js dynamodb|redis URL
// The protocol is described in tests/examples/compare/protocol.rs.
'use strict';

const readline = require('node:readline');
const flexible = require('rate-limiter-flexible');

const WARM_UP_TASKS = 16;
const TABLE_NAME = 'rate-limiter-flexible';

// Both return a function that makes a limiter of the given options.
const connect = {
  async dynamodb(endpoint) {
    const { DynamoDB } = require('@aws-sdk/client-dynamodb');
    const credentials = { accessKeyId: 'local', secretAccessKey: 'local' };
    const storeClient = new DynamoDB({ endpoint, region: 'us-east-1', credentials });
    const tableName = `${TABLE_NAME}-${process.pid}`;
    const options = { storeClient, tableName, points: 1, duration: 1 };
    await new Promise((resolve, reject) => {
      const created = (error) => (error ? reject(error) : resolve());
      new flexible.RateLimiterDynamo(options, created);
    });
    const ready = { storeClient, tableName, tableCreated: true, ttlSet: true };
    return (rule) => new flexible.RateLimiterDynamo({ ...ready, ...rule });
  },
  async redis(url) {
    const { default: Redis } = require('ioredis');
    // As its documentation recommends.
    const storeClient = new Redis(url, { enableOfflineQueue: false });
    await new Promise((resolve, reject) => storeClient.once('ready', resolve).once('error', reject));
    storeClient.on('error', (error) => console.error(String(error)));
    return (rule) => new flexible.RateLimiterRedis({ storeClient, ...rule });
  },
};

// A limiter for these limits; several are a union, the package's own way to combine them.
function limiterOf(make, text) {
  const limiters = text.split(',').map((one) => {
    const [keyPrefix, tokens, seconds] = one.split(/[=/]/);
    return make({ keyPrefix, points: Number(tokens), duration: Number(seconds) });
  });
  return limiters.length === 1 ? limiters[0] : new flexible.RateLimiterUnion(...limiters);
}

// An answer of a limiter, or of each limiter in a union.
function errorOf(rejected) {
  const parts = rejected instanceof Error ? [rejected] : [rejected, ...Object.values(rejected)];
  return parts.find((part) => part instanceof Error);
}

async function run(limiter, tasks, nextKey) {
  const counts = { admitted: 0, refused: 0, failed: 0, error: null };
  const times = [];
  const task = async () => {
    for (let key = nextKey(); key !== null; key = nextKey()) {
      const start = process.hrtime.bigint();
      try {
        await limiter.consume(key, 1);
        counts.admitted += 1;
      } catch (rejected) {
        const error = errorOf(rejected);
        counts[error ? 'failed' : 'refused'] += 1;
        counts.error = error ? String(error) : counts.error;
      }
      times.push(Number(process.hrtime.bigint() - start) / 1000);
    }
  };
  const start = performance.now();
  await Promise.all(Array.from({ length: tasks }, task));
  counts.seconds = (performance.now() - start) / 1000;
  times.sort((one, other) => one - other);
  const percentile = (share) => times[Math.round((times.length - 1) * share)];
  return { ...counts, p50_us: percentile(0.5), p99_us: percentile(0.99) };
}

async function answer(limiterFor, [command, ...words]) {
  let n = 0;
  if (command === 'warm') {
    const [limits, keys] = words;
    const next = () => (n < Number(keys) ? `key-${n++}` : null);
    return run(limiterFor(limits), WARM_UP_TASKS, next);
  }
  if (command === 'slice') {
    const [limits, tasks, keys, millis] = words;
    const end = performance.now() + Number(millis);
    const next = () => (performance.now() < end ? `key-${n++ % Number(keys)}` : null);
    return run(limiterFor(limits), Number(tasks), next);
  }
  if (command === 'ask') {
    const [key, limits, tasks, count] = words;
    const next = () => (n++ < Number(count) ? key : null);
    return run(limiterFor(limits), Number(tasks), next);
  }
  throw new Error(`no such command: ${command}`);
}

async function main() {
  const [store, url] = process.argv.slice(2);
  const make = await connect[store](url);
  const limiters = new Map();
  const limiterFor = (limits) => {
    if (!limiters.has(limits)) limiters.set(limits, limiterOf(make, limits));
    return limiters.get(limits);
  };
  const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
  say({ version: require('rate-limiter-flexible/package.json').version });
  // Even while it waits for a server.
  process.stdin.on('end', () => process.exit(0));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    say(await answer(limiterFor, line.split(' ')));
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
