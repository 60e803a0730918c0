import http, { type IncomingHttpHeaders, type OutgoingHttpHeaders } from 'node:http';
import https, { type AgentOptions } from 'node:https';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { lateReplyMessage } from '../../core/deadline.ts';

export interface HttpClientOptions {
  readonly clock: Clock;
  readonly deadlineMs: Millis;
  readonly maxBytes: number;
  readonly tls?: AgentOptions | undefined;
}

export interface HttpResponse {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  /** Time at which the headers arrived. */
  readonly receivedAt: Millis;
  readonly text: string;
}

export class HttpClient {
  readonly #options: HttpClientOptions;
  readonly #agent = new http.Agent({ keepAlive: true });
  readonly #tlsAgent: https.Agent;

  constructor(options: HttpClientOptions) {
    this.#options = options;
    this.#tlsAgent = new https.Agent({ keepAlive: true, ...options.tls });
  }

  send(
    url: URL,
    method: string,
    headers: OutgoingHttpHeaders,
    body: string | undefined,
  ): Promise<HttpResponse> {
    const { clock, deadlineMs, maxBytes } = this.#options;
    const isTls = url.protocol === 'https:';
    return new Promise((resolve, reject) => {
      const agent = isTls ? this.#tlsAgent : this.#agent;
      const outgoing = (isTls ? https : http).request(url, { method, headers, agent });
      const expire = (): unknown => outgoing.destroy(new Error(lateReplyMessage(deadlineMs)));
      const cancel = schedule(clock, clock.now() + deadlineMs, expire, false);
      outgoing.once('close', cancel).once('error', (error: NodeJS.ErrnoException) => {
        reject(error.message ? error : new Error(error.code, { cause: error })); // an AggregateError has no message
      });
      outgoing.once('response', (response) => {
        const { statusCode: status = 0, headers } = response;
        const receivedAt = clock.now();
        const complete = (text: string): void => resolve({ status, headers, receivedAt, text });
        readText(response, maxBytes).then(complete, reject);
      });
      outgoing.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
    this.#tlsAgent.destroy();
  }
}

/** Reads the body of a request or a response. Rejects if it is longer than `maxBytes`. */
export async function readText(stream: http.IncomingMessage, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw new Error(`body of more than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}
