/** A Worker that passes each request on to the Durable Object that its header names. */

export { SluiceObject } from '../../../src/backends/durable-objects/index.ts';

/** A class that is no part of the package, for the error message. */
export class OtherObject {
  fetch() {
    return new Response('hello');
  }
}

export default {
  fetch(request, env) {
    const name = decodeURIComponent(request.headers.get('object') ?? '');
    if (name === '') return new Response('ready');
    const namespace = request.headers.has('other') ? env.OTHER : env.LIMITS;
    const stub = namespace.get(namespace.idFromName(name));
    return stub.fetch('https://object/', { method: 'POST', body: request.body });
  },
};
