import { isRecord } from '../../core/options.ts';
import { toBinaryKey } from '../../daemon/keys/binary-key.ts';
import { type Field, type LineFormat, TIME_NAMES } from './line-format.ts';
import { TimeReader } from './times.ts';

export class JsonFormat implements LineFormat {
  readonly name = 'json';
  problem = '';
  readonly #time: TimeReader;
  readonly #timePaths: readonly (() => unknown)[];
  readonly #timeName: string;
  #object: Record<string, unknown> = {};

  constructor(timeName: string | undefined, zoneMinutes: number) {
    this.#time = new TimeReader(zoneMinutes);
    this.#timePaths = (timeName === undefined ? TIME_NAMES : [timeName]).map((name) =>
      this.#pathOf(name),
    );
    this.#timeName = timeName ?? 'time (name it with --time)';
  }

  get at(): number {
    return this.#time.at;
  }

  get zoneMinutes(): number {
    return this.#time.zoneMinutes;
  }

  read(bytes: Buffer, from: number, to: number): boolean {
    try {
      const value: unknown = JSON.parse(bytes.toString('utf8', from, to));
      if (!isRecord(value)) return this.#fail('expected a JSON object');
      this.#object = value;
    } catch {
      return this.#fail('expected JSON');
    }
    for (const read of this.#timePaths) {
      const value = read();
      if (value === undefined) continue;
      return this.#time.read(value) || this.#fail(`expected a time, got ${JSON.stringify(value)}`);
    }
    return this.#fail(`expected a field ${this.#timeName}`);
  }

  field(name: string): Field {
    const read = this.#pathOf(name);
    return { text: () => textOf(read()) };
  }

  fieldNames(): readonly string[] {
    return Object.keys(this.#object);
  }

  /** A field of this very name comes before a path. */
  #pathOf(name: string): () => unknown {
    const steps = name.split('.');
    return () => {
      const object = this.#object;
      if (Object.hasOwn(object, name)) return object[name];
      let value: unknown = object;
      for (const step of steps) {
        if (typeof value !== 'object' || value === null || !Object.hasOwn(value, step))
          return undefined;
        value = (value as Record<string, unknown>)[step];
      }
      return value;
    };
  }

  #fail(problem: string): false {
    this.problem = problem;
    return false;
  }
}

function textOf(value: unknown): string | undefined {
  if (typeof value === 'string') return value === '' ? undefined : toBinaryKey(value);
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : undefined;
}
