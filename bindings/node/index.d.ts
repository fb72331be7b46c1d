// SPDX-License-Identifier: Apache-2.0

/** Errors carry `code` ("EINVAL", "EBUSY", "ECLOSED", …) and `errno` (the negative number). */
export interface KwkerError extends Error {
  code: string;
  errno: number;
}

export interface ConnectOptions {
  /** "program/version" for the daemon's log. */
  name?: string;
  /** Longest wait of a call in milliseconds; default 30000. */
  timeoutMs?: number;
}

export interface LoadOptions {
  /** Default: the model's own. */
  precision?: 'float32' | 'f16' | 'bf16' | 'int8' | 'balanced' | 'int4';
  /** int4: bits of the tensors kept finer; default: 6 from a billion parameters on, 8 below. */
  mixBits?: 6 | 8;
  /** Longest sequence in tokens; default: the model's. */
  maxCtx?: number;
  pin?: boolean;
  /** Default 600000. */
  timeoutMs?: number;
}

export interface GenerateOptions {
  /** Default: the only model, or the daemon's default. */
  model?: string;
  /** -1 (default): up to the end of the context. 0: only the prompt is computed. */
  maxNewTokens?: number;
  /** Events carry text too. */
  text?: boolean;
  /** Default false: greedy, and the five settings below are ignored. */
  doSample?: boolean;
  /** > 0; default 1. */
  temperature?: number;
  /** 0 < topP <= 1; default 1 (off). */
  topP?: number;
  /** >= 0; default 0 (off). */
  topK?: number;
  /** 0 … 1; default 0 (off). */
  minP?: number;
  /** Integer 0 … 2^53-1; default: the daemon draws one. */
  seed?: number;
  /** > 0; default 1 (off). */
  repetitionPenalty?: number;
  minNewTokens?: number;
  /** 0 … 12 alternatives per token. */
  logprobs?: number;
  /** End-of-sequence ids instead of the model's. */
  eos?: number[] | Int32Array;
  ignoreEos?: boolean;
  tenant?: string;
  /** Aborting cancels; the iteration then throws the signal's reason. */
  signal?: AbortSignal;
}

export interface TokenEvent {
  type: 'token';
  token: number;
  logprob: number;
  /** Complete UTF-8; absent when the token ends inside a character. */
  text?: string;
  top?: { id: number; logprob: number }[];
}

export interface TextEvent {
  type: 'text';
  text: string;
}

export interface Result {
  finishReason: 'eos' | 'length' | 'cancel' | 'slow_client' | 'shutdown';
  promptTokens: number;
  newTokens: number;
  cachedTokens: number;
  /** Microseconds waiting, until the first token, and after it. */
  queueUs: number;
  prefillUs: number;
  decodeUs: number;
}

/** One running generation: iterate over it (once) for the new token ids. Leaving the loop cancels. */
export class Generation implements AsyncIterable<number> {
  private constructor();
  /** null until the generation is over. */
  readonly result: Result | null;
  cancel(): void;
  events(): AsyncGenerator<TokenEvent | TextEvent, void, void>;
  [Symbol.asyncIterator](): AsyncGenerator<number, void, void>;
}

export interface ModelInfo {
  name: string;
  state: 'loading' | 'ready' | 'failed';
  [key: string]: unknown;
}

/** A session with one kwkerd. */
export class Client {
  private constructor();
  static connect(address?: string, options?: ConnectOptions): Promise<Client>;
  status(): Promise<Record<string, unknown>>;
  models(): Promise<ModelInfo[]>;
  metrics(): Promise<string>;
  load(name: string, path: string, options?: LoadOptions): Promise<void>;
  unload(name: string): Promise<void>;
  pin(name: string, pin?: boolean): Promise<void>;
  generate(prompt: number[] | Int32Array, options?: GenerateOptions): Promise<Generation>;
  generateAll(
    prompt: number[] | Int32Array,
    options?: GenerateOptions,
  ): Promise<{ tokens: number[]; text?: string } & Result>;
  close(): void;
}
