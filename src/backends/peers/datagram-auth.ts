/**
 * Seals datagrams, so that only who knows the key can make one that counts.
 *
 *     ┌──────────────┬────────────────────────┐
 *     │ what is said │ 16 bytes of its HMAC   │      HMAC-SHA-256, keyed by the fleet's key
 *     └──────────────┴────────────────────────┘
 *
 * That a sealed datagram is not from yesterday is the engine's affair: a node has to prove that it is
 * there before it is heard, and each of its reports counts once.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type { HashSeed } from '../../core/hash.ts';

const MAC_BYTES = 16;

export interface DatagramAuth {
  sign(bytes: Uint8Array): Uint8Array;
  /** What is inside; undefined if it was not sealed with this key. */
  verify(bytes: Uint8Array): Uint8Array | undefined;
}

/** Without a key: everything counts. For loopback only. */
const NO_AUTH: DatagramAuth = { sign: (bytes) => bytes, verify: (bytes) => bytes };

export function createDatagramAuth(key: string | undefined): DatagramAuth {
  if (key === undefined) return NO_AUTH;
  const secret = deriveKey(key, 'seal');
  const sealOf = (bytes: Uint8Array): Buffer =>
    createHmac('sha256', secret).update(bytes).digest().subarray(0, MAC_BYTES);
  return {
    sign: (bytes) => Buffer.concat([bytes, sealOf(bytes)]),
    verify(bytes) {
      const end = bytes.length - MAC_BYTES;
      if (end <= 0) return undefined;
      const inside = bytes.subarray(0, end);
      return timingSafeEqual(sealOf(inside), bytes.subarray(end)) ? inside : undefined;
    },
  };
}

/** All of a fleet hash keys alike, and nobody outside knows how. */
export function fleetHashSeed(key: string | undefined): HashSeed {
  const bytes = deriveKey(key ?? '', 'hash');
  return [bytes.readInt32LE(0), bytes.readInt32LE(4)];
}

/** One key for each use, so that knowing one tells nothing of the other. */
const deriveKey = (key: string, use: string): Buffer =>
  createHmac('sha256', key).update(`sluice peers ${use}`).digest();
