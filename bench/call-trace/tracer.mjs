/** Traces a call with a debugger: which functions of dist/ it enters, in order. */

import { Worker } from 'node:worker_threads';

const ROOT = new URL('../../dist/', import.meta.url).href;

export class Tracer {
  #worker;
  #lastId = 0;
  #pending = new Map();

  static async start() {
    const tracer = new Tracer();
    await tracer.#started;
    return tracer;
  }

  #started = new Promise((resolve, reject) => {
    this.#worker = new Worker(new URL('./debugger.mjs', import.meta.url), {
      workerData: { root: ROOT },
    });
    this.#worker.once('error', reject);
    this.#pending.set(0, { resolve, reject });
    this.#worker.on('message', ({ id, result, error }) => {
      const { resolve: done, reject: failed } = this.#pending.get(id);
      this.#pending.delete(id);
      if (error) failed(new Error(error));
      else done(result);
    });
  });

  #post(command) {
    return new Promise((resolve, reject) => {
      const id = ++this.#lastId;
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ id, command });
    });
  }

  /** The function entries of one call. Earlier calls take care of what happens only once. */
  async trace(call) {
    for (let n = 0; n < 3; n++) await call();
    await this.#post('reset');
    await call();
    await this.#post('arm');
    await call();
    return this.#post('read');
  }

  stop() {
    return this.#worker.terminate();
  }
}
