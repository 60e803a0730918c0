import type { PeersBackend } from '../../backends/peers/backend.ts';
import type { PeerOptions } from '../../backends/peers/context.ts';
import type { PeerLimit } from '../../backends/peers/limits.ts';
import { PeerProtocol } from '../../backends/peers/protocol.ts';
import type { Clock } from '../../core/clock.ts';
import { createHasher } from '../../core/hash.ts';
import type { Random } from '../../core/random.ts';

/** The connection of a peers backend, besides its policy and context. */
export type PeerConnection = ConstructorParameters<typeof PeersBackend>[2];

export interface PeerSettings {
  readonly options: PeerOptions;
  readonly clock: Clock;
  readonly random: Random;
  send(to: number, bytes: Uint8Array): void;
  /** Recorded hits are waiting to be sent: the protocol's next tick may be earlier. */
  onPendingHits(): void;
  /** A message of another peer has changed a bucket. */
  onRemoteHits?(): void;
}

/** All peers of a simulation use one hash seed. */
const HASH_SEED: [number, number] = [1, 2];

export function createPeer(settings: PeerSettings): {
  readonly protocol: PeerProtocol;
  readonly connection: PeerConnection;
} {
  const { options, clock, random, send, onPendingHits, onRemoteHits } = settings;
  const protocol = new PeerProtocol(options, random, send, clock.now());
  const connection: PeerConnection = {
    hasher: createHasher(HASH_SEED),
    addLimit: (limit: PeerLimit): void =>
      protocol.addLimit({
        ...limit,
        applyRemoteHits: (low, high, hits, agoMs) => {
          onRemoteHits?.();
          limit.applyRemoteHits(low, high, hits, agoMs);
        },
      }),
    removeLimit: protocol.removeLimit.bind(protocol),
    recordHits: (limit: PeerLimit, low: number, high: number, hits: number): void => {
      if (protocol.recordHits(limit, low, high, hits)) onPendingHits();
    },
    retractHits: protocol.retractHits.bind(protocol),
    msUntilReleased: (limit, low, high, units) =>
      protocol.msUntilReleased(limit, low, high, units, clock.now()),
    isCatchingUp: () => protocol.isCatchingUp(clock.now()),
  };
  return { protocol, connection };
}
