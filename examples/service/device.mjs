// A device in JavaScript (Node 18 or newer, no packages): it checks in, waits or trains, and reports.
//
//     TURNOUT_ADDRESS=http://127.0.0.1:8080/v1/fleets/fleet TURNOUT_TOKEN=… node examples/service/device.mjs 3
//
// takes part in three turns and ends. The training is simulated by a pause. Nothing else is needed in a browser or in
// another language: two calls, and the same Idempotency-Key when a call is sent again.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const address = process.env.TURNOUT_ADDRESS;
const token = process.env.TURNOUT_TOKEN;
const turns = Number(process.argv[2] ?? 3);
if (!address || !token || !(turns >= 1)) {
  console.error("set TURNOUT_ADDRESS and TURNOUT_TOKEN, and pass a number of turns");
  process.exit(2);
}

const ATTEMPTS = 12;
const RETRIED = new Set([429, 502, 503, 504]); // the service, or a proxy before it, cannot execute the call now

/** Sends a change until it is answered. All attempts have the same key, so that the service executes it once. */
async function post(path, body, headers = {}) {
  const key = randomUUID();
  let problem;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    if (attempt > 0) {
      await sleep(Math.random() * Math.min(200 * 2 ** attempt, 10_000)); // devices do not return all at once
    }
    let response, answer;
    try {
      response = await fetch(`${address}${path}`, {
        method: "POST",
        headers: {
          authorization: `Bearer ${token}`,
          "content-type": "application/json",
          "idempotency-key": key,
          ...headers,
        },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(60_000),
      });
      answer = await response.json();
    } catch (error) {
      problem = error; // no answer, or not a whole one: perhaps the call was executed
      continue;
    }
    if (response.ok) return answer;
    problem = new Error(`${response.status} ${answer.code}: ${answer.detail}`);
    if (!RETRIED.has(response.status)) throw problem; // it would be refused again
    await sleep(1000 * Number(response.headers.get("retry-after") ?? 0));
  }
  throw problem;
}

/** Simulates the training; returns the mean loss. */
async function train() {
  await sleep(50 + 100 * Math.random());
  return Math.random();
}

for (let done = 0; done < turns; ) {
  const status = { free_cpu: 1.5, bandwidth: 3.0 };
  const { turn, wait } = await post("/check-ins", { status }, { prefer: "wait=30" }); // answered with the turn, if it can
  if (turn === null) {
    console.log(`waits for ${wait.seconds.toFixed(2)} s: ${wait.why}`);
    await sleep(1000 * wait.seconds);
    continue;
  }
  const start = performance.now();
  let answer;
  try {
    const loss = await train();
    answer = await post("/reports", { turn: turn.id, seconds: (performance.now() - start) / 1000, loss });
  } catch (error) {
    await post("/failures", { turn: turn.id, why: String(error) });
    throw error;
  }
  done += 1;
  console.log(`turn ${turn.id}: ${answer.new ? "recorded" : "it was recorded before"}`);
}
