// A client of `sluicegate serve` in Node 18 or later, without dependencies: node client.mjs [URL]
//
// It calls a model within limits: an estimate before the call, the actual use after it.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

/** A limit is short. `retryAfter` is in seconds; null: waiting does not help. */
export class Refused extends Error {
  constructor(problem, retryAfter) {
    super(problem.detail ?? "refused");
    this.limits = problem["violated-policies"] ?? [];
    this.retryAfter = retryAfter;
  }
}

export class Sluicegate {
  constructor(url = "http://127.0.0.1:8470", { token, timeoutMs = 5_000 } = {}) {
    this.url = url.replace(/\/$/, "");
    this.timeoutMs = timeoutMs;
    this.headers = { "content-type": "application/json" };
    if (token) this.headers.authorization = `Bearer ${token}`;
  }

  /** Takes all amounts or none; throws Refused. `more`: limits, parent, wait_ms. */
  acquire(entity, resource, amounts, more = {}) {
    return this.#post("/v1/acquire", { entity, resource, amounts, ...more });
  }

  /** Corrects a permit to the amounts that were used, once however often it is sent. */
  adjust(permit, to) {
    const key = randomUUID();
    return this.#post(`/v1/permits/${permit.permit}/adjust`, { to }, { key, tries: 5 });
  }

  /** Gives everything back, once however often it is sent. */
  release(permit) {
    return this.#post(`/v1/permits/${permit.permit}/release`, undefined, { tries: 5 });
  }

  async #post(path, body, { key, tries = 1 } = {}) {
    const headers = key ? { ...this.headers, "idempotency-key": key } : this.headers;
    const init = { method: "POST", headers, body: body && JSON.stringify(body) };
    for (let attempt = 1; ; attempt += 1) {
      let answer;
      try {
        answer = await fetch(this.url + path, { ...init, signal: AbortSignal.timeout(this.timeoutMs) });
      } catch (error) {
        if (attempt === tries) throw error;
      }
      if (answer?.ok) return answer.json();
      if (answer) {
        const problem = await answer.json().catch(() => ({}));
        const retryAfter = answer.headers.get("retry-after");
        if (answer.status === 429) throw new Refused(problem, retryAfter && Number(retryAfter));
        if (answer.status !== 503 || attempt === tries) {
          throw new Error(`${answer.status}: ${problem.detail}`);
        }
      }
      await sleep(100 * 2 ** attempt);
    }
  }
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const gate = new Sluicegate(process.argv[2], { token: process.env.SLUICEGATE_TOKEN });
  const limits = ["rpm=2/h", "tpm=10000/h"];
  for (const question of ["one", "two", "three"]) {
    try {
      const permit = await gate.acquire("user-js", "gpt-4", { rpm: 1, tpm: 500 }, { limits });
      const used = 120; // the model's answer says how many tokens it took
      await gate.adjust(permit, { tpm: used });
      const rpm = permit.limits.find(({ limit }) => limit === "rpm");
      const whole = Math.floor(rpm.available); // limits refill by fractions of a token
      console.log(`${question}: granted, requests left ${whole}, corrected to ${used} tokens`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      console.log(`${question}: refused by ${error.limits.join(", ")}`);
    }
  }
}
