/**
 * How much is under way at once. Those beyond wait here, first come first served, where waiting for one another is not
 * taken for a server that does not answer.
 */

const UNDERWAY_MAX = 32;

export class Turns {
  #underway = 0;
  readonly #waiting: (() => void)[] = [];

  async take<T>(work: () => Promise<T>): Promise<T> {
    if (this.#underway >= UNDERWAY_MAX) await new Promise<void>((go) => this.#waiting.push(go));
    else this.#underway++;
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#underway--;
    }
  }
}
