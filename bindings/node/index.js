// SPDX-License-Identifier: Apache-2.0
//
// The client for Node: promises and async iterators over the addon (src/). Types: index.d.ts.
'use strict';

const native = require('./kwker.node');

/** One running generation: an async iterable of token ids. */
class Generation {
  #client;
  #handle;
  #signal;
  #waiter = null; // { resolve } of a next() that sleeps
  #ended = false;
  #onAbort = null;

  /** Set when the generation is over: finish reason, counts and times. */
  result = null;

  constructor(client, handle, signal) {
    this.#client = client;
    this.#handle = handle;
    this.#signal = signal;
    if (signal) {
      this.#onAbort = () => this.cancel();
      signal.addEventListener('abort', this.#onAbort, { once: true });
      if (signal.aborted) this.cancel();
    }
  }

  /** Ask the daemon to stop. The iteration then ends by itself; result.finishReason is "cancel". */
  cancel() {
    if (!this.#ended) native.cancel(this.#handle);
  }

  _wake() {
    const w = this.#waiter;
    this.#waiter = null;
    if (w) w();
  }

  #end() {
    this.#ended = true;
    this.#client._streams.delete(this);
    this.#client._update();
    if (this.#onAbort) this.#signal.removeEventListener('abort', this.#onAbort);
  }

  /** Events: { type: 'token' | 'text', … }; ends after the last. Leaving the loop cancels. */
  async *events() {
    try {
      while (!this.#ended) {
        this.#client._throwIfLost();
        const event = native.next(this.#handle);
        if (event === null) {
          await new Promise((resolve) => {
            this.#waiter = resolve;
            this.#client._streams.add(this);
            this.#client._update();
          });
          continue;
        }
        if (event.type === 'done') {
          delete event.type;
          this.result = event;
          this.#end();
          if (this.#signal?.aborted) throw this.#signal.reason;
          return;
        }
        yield event;
      }
    } finally {
      if (!this.#ended) {
        try {
          this.cancel();
        } finally {
          this.#end();
        }
      }
    }
  }

  async *[Symbol.asyncIterator]() {
    for await (const event of this.events()) if (event.type === 'token') yield event.token;
  }
}

/** A session with one kwkerd. Make it with Client.connect(). */
class Client {
  #handle;
  #lost = null;
  #keepAlive = null;
  _streams = new Set(); // generations that sleep

  constructor(handle) {
    this.#handle = handle;
    native.watch(handle, () => {
      try {
        native.drain(handle);
      } catch (error) {
        this.#lost = error;
      }
      const asleep = [...this._streams];
      this._streams.clear();
      this._update();
      for (const s of asleep) s._wake();
    });
  }

  /** Connect to a daemon: its runtime directory, or undefined for $KWKER_DAEMON and the defaults. */
  static async connect(address, options = {}) {
    const handle = await native.open(undefined, { ...options, address });
    return new Client(handle);
  }

  // The wake-up thread does not keep the process alive; a timer does while something is awaited.
  _update() {
    if (this._streams.size && !this.#keepAlive) {
      this.#keepAlive = setInterval(() => {}, 1 << 30);
    } else if (!this._streams.size && this.#keepAlive) {
      clearInterval(this.#keepAlive);
      this.#keepAlive = null;
    }
  }

  _throwIfLost() {
    if (this.#lost) throw this.#lost;
  }

  async #query(what) {
    return JSON.parse(await native.query(this.#handle, { what }));
  }

  status() {
    return this.#query('status');
  }

  async models() {
    return (await this.#query('models')).models;
  }

  /** Prometheus text. */
  async metrics() {
    return (await this.#query('metrics')).text;
  }

  /** Load a model under the daemon's model directories and wait until it is ready. */
  async load(name, path, options = {}) {
    await native.load(this.#handle, { ...options, name, path });
  }

  async unload(name) {
    await native.unload(this.#handle, { name });
  }

  async pin(name, pin = true) {
    await native.pin(this.#handle, { name, pin });
  }

  /** Start a generation from prompt ids; iterate over it for the new ids. */
  async generate(prompt, options = {}) {
    const { signal, ...rest } = options;
    signal?.throwIfAborted();
    const handle = await native.generate(this.#handle, { ...rest, prompt });
    return new Generation(this, handle, signal);
  }

  /** Generate to the end: { tokens, text?, …result }. */
  async generateAll(prompt, options = {}) {
    const generation = await this.generate(prompt, options);
    const tokens = [];
    let text = options.text ? '' : undefined;
    for await (const event of generation.events()) {
      if (event.type === 'token') tokens.push(event.token);
      if (options.text && event.text) text += event.text;
    }
    return { tokens, text, ...generation.result };
  }

  /** End the session; what still runs in it is cancelled. */
  close() {
    const asleep = [...this._streams];
    this._streams.clear();
    this._update();
    native.close(this.#handle);
    for (const s of asleep) s._wake();
  }

  async [Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')]() {
    this.close();
  }
}

module.exports = { Client, Generation };
