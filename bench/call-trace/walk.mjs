/** Walks a call with a debugger: which functions of ours it enters, in their order. */

import { Worker } from 'node:worker_threads';

const UNDER = new URL('../../dist/', import.meta.url).href;

export class Walker {
  #worker;
  #id = 0;
  #open = new Map();

  static async start() {
    const walker = new Walker();
    await walker.#started;
    return walker;
  }

  #started = new Promise((resolve, reject) => {
    this.#worker = new Worker(new URL('./watcher.mjs', import.meta.url), {
      workerData: { under: UNDER },
    });
    this.#worker.once('error', reject);
    this.#open.set(0, { resolve, reject });
    this.#worker.on('message', ({ id, result, error }) => {
      const { resolve: done, reject: failed } = this.#open.get(id);
      this.#open.delete(id);
      if (error) failed(new Error(error));
      else done(result);
    });
  });

  #post(call) {
    return new Promise((resolve, reject) => {
      const id = ++this.#id;
      this.#open.set(id, { resolve, reject });
      this.#worker.postMessage({ id, call });
    });
  }

  /** The steps of one call; it is made a few times before, so that what is only done once is not seen. */
  async walk(call) {
    for (let n = 0; n < 3; n++) await call();
    await this.#post('forget');
    await call();
    await this.#post('arm');
    await call();
    return this.#post('read');
  }

  stop() {
    return this.#worker.terminate();
  }
}
