/** The part of Cloudflare's API that this backend uses, as types: the package needs no type package. */

import type { Millis } from '../../core/clock.ts';

/** A binding to a Durable Object class: `env.LIMITS`. */
export interface ObjectNamespace {
  idFromName(name: string): object;
  get(id: object, options?: { locationHint?: string }): ObjectStub;
}

interface ObjectStub {
  fetch(
    url: string,
    init: { method: string; body: string },
  ): Promise<{ readonly status: number; text(): Promise<string> }>;
}

/** The argument that the platform passes to the constructor of a Durable Object. */
export interface ObjectState {
  readonly storage: ObjectStorage;
}

export interface ObjectStorage {
  get(keys: string[]): Promise<Map<string, unknown>>;
  put(entries: Record<string, unknown>): Promise<void>;
  delete(keys: string[]): Promise<number>;
  deleteAll(): Promise<void>;
  list(options: {
    prefix: string;
    limit: number;
    startAfter?: string;
  }): Promise<Map<string, unknown>>;
  getAlarm(): Promise<Millis | null>;
  setAlarm(at: Millis): Promise<void>;
}
