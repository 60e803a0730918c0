export const CLIENT_LEFT = new Error('the client closed the connection while it waited');

export class ClientSignal {
  #controller: AbortController | undefined;
  #hasLeft = false;

  /** Aborts when the client leaves. Created with the first use, as few requests wait. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#hasLeft) this.#controller.abort(CLIENT_LEFT);
    return this.#controller.signal;
  }

  leave(): void {
    this.#hasLeft = true;
    this.#controller?.abort(CLIENT_LEFT);
  }
}
