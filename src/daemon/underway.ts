/**
 * Questions on their way to somebody else, counted: whoever wants to close that way waits until all of
 * them are back.
 */

export class Underway {
  #count = 0;
  #waiting: (() => void)[] = [];

  begin(): void {
    this.#count++;
  }

  end(): void {
    if (--this.#count > 0) return;
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  /** Resolves as soon as nothing is underway. */
  over(): Promise<void> {
    if (this.#count === 0) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }
}
