/**
 * Encrypts and authenticates datagrams with the fleet's key (AEAD in the construction of SIV, RFC 5297).
 *
 *     ┌──────────────────────────────────┬────────────────────────────────┐
 *     │ message, AES-256-CTR, IV = MAC   │ first 16 bytes of its MAC      │      HMAC-SHA-256 of the message
 *     └──────────────────────────────────┴────────────────────────────────┘
 *
 * The MAC is also the initialisation vector, so no nonce is needed that must never repeat. Messages differ, as each
 * has its sender and sequence number. An observer sees addresses, sizes and times, and nothing of the contents.
 *
 * The MAC does not prevent replays. The protocol does: by the handshake (`handshake.ts`), the replay window
 * (`replay-window.ts`), and by counting each report once.
 */

import { createCipheriv, createHmac, timingSafeEqual } from 'node:crypto';
import type { HashSeed } from '../../core/hash.ts';
import { MAX_MESSAGE_BYTES } from './bytes.ts';

const MAC_BYTES = 16;

/** A longer datagram is of no peer: its MAC is not computed, which would take time in proportion to its length. */
const MAX_ENCRYPTED_BYTES = MAX_MESSAGE_BYTES + MAC_BYTES;

export interface DatagramAuth {
  encrypt(message: Uint8Array): Uint8Array;
  /** The message; undefined if its MAC does not match. */
  decrypt(bytes: Uint8Array): Uint8Array | undefined;
}

/** Without a key every datagram is readable and accepted: for loopback only. */
const NO_AUTH: DatagramAuth = { encrypt: (message) => message, decrypt: (bytes) => bytes };

export function createDatagramAuth(key: string | undefined): DatagramAuth {
  if (key === undefined) return NO_AUTH;
  const macKey = deriveKey(key, 'mac');
  const cipherKey = deriveKey(key, 'cipher');
  const macOf = (message: Uint8Array): Buffer =>
    createHmac('sha256', macKey).update(message).digest().subarray(0, MAC_BYTES);
  /** In counter mode encryption and decryption are the same. */
  const applyCipher = (mac: Uint8Array, bytes: Uint8Array): Buffer =>
    createCipheriv('aes-256-ctr', cipherKey, mac).update(bytes);
  return {
    encrypt(message) {
      const mac = macOf(message);
      return Buffer.concat([applyCipher(mac, message), mac]);
    },
    decrypt(bytes) {
      const end = bytes.length - MAC_BYTES;
      if (end <= 0 || bytes.length > MAX_ENCRYPTED_BYTES) return undefined;
      const mac = bytes.subarray(end);
      const message = applyCipher(mac, bytes.subarray(0, end));
      return timingSafeEqual(macOf(message), mac) ? message : undefined;
    },
  };
}

/** Every node of a fleet hashes keys alike, with a seed that only the key reveals; without a key it is public. */
export function fleetHashSeed(key: string | undefined): HashSeed {
  const bytes = deriveKey(key ?? '', 'hash');
  return [0, 4, 8, 12].map((at) => bytes.readInt32LE(at));
}

/** A separate key per use, so that one does not reveal the other. The labels are part of the wire format. */
const deriveKey = (key: string, use: string): Buffer =>
  createHmac('sha256', key).update(`sluice peers ${use}`).digest();
