/**
 * A backend on a central server such as Redis, on virtual time: one round trip for every request, decided on the
 * server by the same policy that the library runs.
 *
 * The Lua scripts do not run here; tests verify that they decide as the policies do. Batching, prefetch, the fleet
 * queue and the circuit breaker of `backends/redis` are not simulated: every request waits for its own deadline.
 */

import { LocalBackend } from '../../backends/local/backend.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendFactory,
  type RemoteDecision,
  toBatchDecision,
} from '../../backends/remote-backend.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import { allow, type Decision, deny } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Random } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import type { Settlement } from '../../policies/policy.ts';
import type { Links } from './links.ts';
import type { NodeClock } from './node-clock.ts';
import type { BackendSpec, ScenarioLimit } from './scenario.ts';

type CentralSpec = Extract<BackendSpec, { kind: 'redis' }>;

/** The state of one limit in the server. */
export const createCentralServer = (
  { limit }: ScenarioLimit,
  clock: Clock,
  random: Random,
): LocalBackend =>
  new LocalBackend(createPolicy(limit, random), { clock, random, maxKeys: 1_000_000 });

/** The retry time of a call that the server has not decided. */
const UNDECIDED_RETRY_MS: Millis = 100;

export function centralFactory(
  server: LocalBackend,
  spec: CentralSpec,
  links: Links,
  node: number,
  clock: NodeClock,
): RemoteBackendFactory {
  return {
    isRemote: true,
    create: () => new CentralBackend(server, spec, links, node, clock),
  };
}

class CentralBackend implements RemoteBackend {
  readonly #server: LocalBackend;
  readonly #spec: CentralSpec;
  readonly #links: Links;
  readonly #node: number;
  readonly #clock: NodeClock;
  isAvailable = true;

  constructor(
    server: LocalBackend,
    spec: CentralSpec,
    links: Links,
    node: number,
    clock: NodeClock,
  ) {
    this.#server = server;
    this.#spec = spec;
    this.#links = links;
    this.#node = node;
    this.#clock = clock;
  }

  get onUnavailable(): 'allow' | 'deny' {
    return this.#spec.onUnavailable;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#decide(() => this.#server.check(key, cost));
  }

  checkNow(key: string, cost: number): Promise<RemoteDecision> {
    return this.#decide(() => this.#server.checkNow(key, cost, this.#clock.now()));
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    const reply = await this.#request(() => {
      const decidedAt = this.#clock.now();
      for (const [granted, cost] of costs.entries()) {
        const decision = this.#server.checkNow(key, cost, decidedAt);
        if (decision.verdict === 'deny') return { granted, refusal: decision, decidedAt };
      }
      return { granted: costs.length, refusal: undefined, decidedAt };
    });
    return reply ?? toBatchDecision(this.#undecided());
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    return (await this.#request(() => this.#server.takeUpTo(key, most))) ?? 0;
  }

  async settle(key: string, settlement: Settlement): Promise<void> {
    await this.#request(() => this.#server.settle(key, settlement));
  }

  async addHits(key: string, hits: number): Promise<void> {
    await this.#request(() => this.#server.update(key, { hits }));
  }

  async readState(): Promise<undefined> {}

  async close(): Promise<void> {}

  async #decide(decide: () => Decision): Promise<RemoteDecision> {
    const reply = await this.#request(() => {
      return { decision: decide(), decidedAt: this.#clock.now() };
    });
    return reply ?? this.#undecided();
  }

  #undecided(): RemoteDecision {
    const decision = this.#spec.onUnavailable === 'allow' ? allow(0) : deny(UNDECIDED_RETRY_MS);
    return { decision, decidedAt: this.#clock.now(), fromFallback: true };
  }

  /** Undefined if no reply came within the deadline. */
  async #request<T>(work: () => T): Promise<T | undefined> {
    const { rttMs, deadlineMs } = this.#spec;
    const isConnected = (): boolean => this.#links.canReachServer(this.#node);
    try {
      const result = await withDeadline(this.#clock, deadlineMs, 'redis', () =>
        this.#links.request(this.#clock, isConnected, rttMs, work),
      );
      this.isAvailable = true;
      return result;
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      this.isAvailable = false;
      return undefined;
    }
  }
}
