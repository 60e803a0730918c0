/**
 * Authenticates datagrams by a message authentication code (MAC) with the fleet's key.
 *
 *     ┌──────────────┬───────────────────────┐
 *     │ message      │ first 16 bytes of MAC │      HMAC-SHA-256
 *     └──────────────┴───────────────────────┘
 *
 * The MAC does not prevent replays. The protocol does: by the handshake (`handshake.ts`), the replay window
 * (`replay-window.ts`), and by counting each report once.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type { HashSeed } from '../../core/hash.ts';

const MAC_BYTES = 16;

export interface DatagramAuth {
  sign(bytes: Uint8Array): Uint8Array;
  /** The message without its MAC; undefined if the MAC does not match. */
  verify(bytes: Uint8Array): Uint8Array | undefined;
}

/** Without a key every datagram is accepted: for loopback only. */
const NO_AUTH: DatagramAuth = { sign: (bytes) => bytes, verify: (bytes) => bytes };

export function createDatagramAuth(key: string | undefined): DatagramAuth {
  if (key === undefined) return NO_AUTH;
  const secret = deriveKey(key, 'seal');
  const macOf = (bytes: Uint8Array): Buffer =>
    createHmac('sha256', secret).update(bytes).digest().subarray(0, MAC_BYTES);
  return {
    sign: (bytes) => Buffer.concat([bytes, macOf(bytes)]),
    verify(bytes) {
      const end = bytes.length - MAC_BYTES;
      if (end <= 0) return undefined;
      const message = bytes.subarray(0, end);
      return timingSafeEqual(macOf(message), bytes.subarray(end)) ? message : undefined;
    },
  };
}

/** Every node of a fleet hashes keys alike, with a seed that depends on the key. */
export function fleetHashSeed(key: string | undefined): HashSeed {
  const bytes = deriveKey(key ?? '', 'hash');
  return [bytes.readInt32LE(0), bytes.readInt32LE(4)];
}

/** A separate key per use, so that one does not reveal the other. The labels are part of the wire format. */
const deriveKey = (key: string, use: string): Buffer =>
  createHmac('sha256', key).update(`sluice peers ${use}`).digest();
