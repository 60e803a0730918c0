/** A place that HTTP requests go to: what it takes, who may, and what it answers. */

import type { Heard } from './key.ts';
import type { Reply } from './reply.ts';

export type Handle = (request: Heard, queryAt: number, body: Buffer) => Reply | Promise<Reply>;

export interface Endpoint {
  readonly methods: readonly string[];
  /** Behind the counter. */
  readonly isAdmin: boolean;
  readonly handle: Handle;
}

export const READ: readonly string[] = ['GET', 'HEAD'];
export const CHANGE: readonly string[] = ['POST'];

/** For anybody. */
export const open = (methods: readonly string[], handle: Handle): Endpoint => ({
  methods,
  isAdmin: false,
  handle,
});

/** For those who look after the daemon. */
export const admin = (methods: readonly string[], handle: Handle): Endpoint => ({
  methods,
  isAdmin: true,
  handle,
});
