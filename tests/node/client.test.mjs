// SPDX-License-Identifier: Apache-2.0
//
// The Node client against a real kwkerd on a temporary runtime directory, with the tiny trained model
// of ../shared/data.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from '../../bindings/node/index.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const bin = process.env.KWK_BIN_DIR ?? path.join(root, 'build/bin');
const data = path.join(process.env.KWK_SHARED ?? path.join(root, '../shared'), 'data/stories260K');
const stories = JSON.parse(fs.readFileSync(path.join(data, 'greedy_from_bos_256.json')));
const expected = Array.isArray(stories) ? stories : stories.ids;

let dir, daemon;

async function startDaemon() {
  const child = spawn(path.join(bin, 'kwkerd'),
    ['--runtime-dir', dir, '--model', `stories=${data},precision=float32`],
    { stdio: ['ignore', 'ignore', 'pipe'] });
  child.log = '';
  child.stderr.on('data', (d) => { child.log += d; });
  for (let i = 0; i < 200; i++) {
    if (child.exitCode !== null) throw new Error(`kwkerd exited: ${child.log}`);
    try {
      const c = await Client.connect(dir);
      const ready = (await c.models()).some((m) => m.name === 'stories' && m.state === 'ready');
      c.close();
      if (ready) return child;
    } catch (e) {
      if (e.code !== 'ENOENT') throw e;
    }
    await new Promise((r) => setTimeout(r, 25));
  }
  throw new Error(`kwkerd is not ready: ${child.log}`);
}

async function stopDaemon(child) {
  if (child.exitCode !== null || child.signalCode) return;
  const gone = new Promise((r) => child.once('exit', r));
  child.kill('SIGTERM');
  await gone;
}

before(async () => {
  dir = fs.mkdtempSync(path.join(os.tmpdir(), 'kwker-node-'));
  daemon = await startDaemon();
});

after(async () => {
  await stopDaemon(daemon);
  fs.rmSync(dir, { recursive: true, force: true });
});

test('greedy decoding from BOS gives exactly the published ids', async () => {
  const client = await Client.connect(dir);
  const ids = [expected[0]];
  const generation = await client.generate([expected[0]], { maxNewTokens: expected.length - 1, ignoreEos: true });
  for await (const id of generation) ids.push(id);
  assert.deepEqual(ids, expected);
  assert.equal(generation.result.finishReason, 'length');
  assert.equal(generation.result.newTokens, expected.length - 1);
  client.close();
});

test('eight generations of one client at once each get their own stream', async () => {
  const client = await Client.connect(dir);
  const all = await Promise.all(Array.from({ length: 8 }, (_, i) =>
    client.generateAll(Int32Array.of(expected[0]), { maxNewTokens: 20 + i, ignoreEos: true })));
  all.forEach((r, i) => assert.deepEqual(r.tokens, expected.slice(1, 21 + i)));
  client.close();
});

test('leaving the loop cancels the generation', async () => {
  const client = await Client.connect(dir);
  const generation = await client.generate([1], { maxNewTokens: 500, ignoreEos: true });
  for await (const id of generation) {
    assert.equal(id, expected[1]);
    break;
  }
  for (let i = 0; i < 100 && (await client.status()).running !== 0; i++)
    await new Promise((r) => setTimeout(r, 10));
  assert.equal((await client.status()).running, 0);
  client.close();
});

test('cancel() ends the iteration with the reason', async () => {
  const client = await Client.connect(dir);
  const generation = await client.generate([1], { maxNewTokens: 500, ignoreEos: true });
  let n = 0;
  for await (const id of generation) if (++n === 3) generation.cancel();
  assert.ok(n >= 3 && n < 500, `${n} tokens`);
  assert.equal(generation.result.finishReason, 'cancel');
  client.close();
});

test('an aborted signal rejects the iteration with its reason', async () => {
  const client = await Client.connect(dir);
  const stop = new AbortController();
  const generation = await client.generate([1], { maxNewTokens: 500, ignoreEos: true, signal: stop.signal });
  await assert.rejects(async () => {
    for await (const id of generation) stop.abort(new Error('enough'));
  }, /enough/);
  client.close();
});

test('the same seed gives the same tokens', async () => {
  const client = await Client.connect(dir);
  const options = { maxNewTokens: 30, ignoreEos: true, doSample: true, temperature: 1.3, topP: 0.95, seed: 42 };
  const a = await client.generateAll([1], options);
  const b = await client.generateAll([1], options);
  const c = await client.generateAll([1], { ...options, seed: 43 });
  assert.deepEqual(a.tokens, b.tokens);
  assert.notDeepEqual(a.tokens, c.tokens);
  client.close();
});

test('logprobs come with each token, most likely first', async () => {
  const client = await Client.connect(dir);
  const generation = await client.generate([1], { maxNewTokens: 4, ignoreEos: true, logprobs: 3 });
  let n = 0;
  for await (const event of generation.events()) {
    if (event.type !== 'token') continue;
    n++;
    assert.equal(event.top.length, 3);
    assert.equal(event.top[0].id, event.token);
    assert.ok(event.top[0].logprob >= event.top[1].logprob && event.top[1].logprob >= event.top[2].logprob);
    assert.ok(Math.abs(event.top[0].logprob - event.logprob) < 1e-6);
  }
  assert.equal(n, 4);
  client.close();
});

test('bad input is a typed error and the next request is served', async () => {
  const client = await Client.connect(dir);
  const bad = async (prompt, options, code) => assert.rejects(
    async () => { await client.generateAll(prompt, { maxNewTokens: 2, ...options }); },
    (e) => e.code === code && e.message.length > 0, JSON.stringify([prompt, options]));
  await bad([], {}, 'EINVAL');
  await bad([512], {}, 'EINVAL');
  await bad([-1], {}, 'EINVAL');
  await bad(new Array(513).fill(5), {}, 'EINVAL');
  await bad([1], { doSample: true, temperature: 0 }, 'EINVAL');
  await bad([1], { doSample: true, topP: 2 }, 'EINVAL');
  await bad([1], { maxNewTokens: -2 }, 'EINVAL');
  await bad([1], { maxNewTokens: 1.5 }, 'EINVAL');
  await bad(['1'], {}, 'EINVAL');
  await bad([1], { model: 'no such model' }, 'ENOENT');
  await assert.rejects(client.load('x', '/etc/hostname'), (e) => e.code === 'EPERM' || e.code === 'ENOENT');
  assert.deepEqual((await client.generateAll([1], { maxNewTokens: 2 })).tokens, expected.slice(1, 3));
  client.close();
});

test('status, models and metrics answer', async () => {
  const client = await Client.connect(dir);
  const status = await client.status();
  assert.match(status.server, /^kwkerd\//);
  const [model] = await client.models();
  assert.equal(model.name, 'stories');
  assert.equal(model.vocab, 512);
  assert.match(await client.metrics(), /^kwk\w+ \d/m);
  client.close();
});

test('a closed client refuses calls', async () => {
  const client = await Client.connect(dir);
  client.close();
  client.close();
  await assert.rejects(client.status(), { code: 'ECLOSED' });
});

test('no daemon is ENOENT with the path', async () => {
  await assert.rejects(Client.connect('/nonexistent/kwker'), (e) => e.code === 'ENOENT' && /nonexistent/.test(e.message));
});

test('kill -9 of the daemon ends a running iteration with ECLOSED within 500 ms', async () => {
  const client = await Client.connect(dir);
  const generation = await client.generate([1], { maxNewTokens: 500, ignoreEos: true });
  let killed = 0;
  await assert.rejects(async () => {
    for await (const id of generation) {
      if (!killed) {
        killed = Date.now();
        daemon.kill('SIGKILL');
        await new Promise((r) => daemon.once('exit', r));
      }
    }
    assert.equal(generation.result.newTokens, 0, 'it had ended before the kill');
  }, { code: 'ECLOSED' });
  assert.ok(Date.now() - killed < 500, `${Date.now() - killed} ms`);
  client.close();
  daemon = await startDaemon();
});
