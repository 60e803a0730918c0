/** A server in a child process, with a folder of its own. */
export interface Service {
  readonly port: number;
  readonly pid: number;
  /** Kills the server, as a crash would. */
  kill(): Promise<void>;
  /** Starts it again on the same ports, in the same folder. */
  restart(): Promise<void>;
  /** Deletes its data, after it was killed. */
  wipe(): void;
  /** Suspends and continues the process. */
  pause(): void;
  resume(): void;
  /** Kills it, and removes its folder. */
  stop(): Promise<void>;
}

/** Suspends a process, and returns when all its threads have stopped. */
export function pause(pid: number): void;

export const ANNOUNCES: Readonly<Record<'redis' | 'nats' | 'etcd', string>>;

/** A server has exited before it was ready. */
export class ExitedError extends Error {}

type ChoosePorts = (count: number) => Promise<number[]>;

export function withFreePorts<T>(
  count: number,
  start: (ports: number[]) => Promise<T>,
  choosePorts?: ChoosePorts,
): Promise<T>;

export interface ServerSetup {
  readonly command: string;
  argsIn(folder: string, ports: number[]): string[];
  /** What the server prints once it serves. */
  readonly announces?: string;
  isReady?(folder: string): boolean | Promise<boolean>;
}

interface PortChoice {
  readonly portCount?: number;
  readonly choosePorts?: ChoosePorts;
}

export function startServer(setup: ServerSetup & PortChoice): Promise<Service>;
export function startServerAt(ports: number[], setup: ServerSetup): Promise<Service>;
export function startTogether(starting: Promise<Service>[]): Promise<Service[]>;
