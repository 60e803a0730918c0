export interface Example {
  readonly title: string;
  /** The behaviour that the charts show. */
  readonly shows: string;
  readonly link: string;
}

export const EXAMPLES: readonly Example[] = [
  {
    title: 'Overload: a bucket or no limit',
    shows:
      'More calls arrive than the server can serve. Without a limit every call is slow, and most time out.',
    link: 'traffic=poisson&rate=300&clients=10&a=bucket&a.scope=all&a.rate=150&a.burst=20&b=none',
  },
  {
    title: 'Capacity that is not known: adaptive or fixed',
    shows: 'The adaptive limit finds the knee of the server, where a fixed limit was set too high.',
    link: 'traffic=poisson&rate=300&a=adaptive&a.scope=all&a.wait=500&b=concurrency&b.scope=all&b.inFlight=60&b.wait=500&knee=15&contention=40',
  },
  {
    title: 'A hog: a count for each client or one for all',
    shows:
      'With one count for all clients, the hog uses up the limit, and calls of the others are refused.',
    link: 'traffic=hog&rate=60&clients=12&factor=40&a=bucket&a.scope=client&a.rate=10&a.burst=10&b=bucket&b.scope=all&b.rate=120&b.burst=20',
  },
  {
    title: 'Spikes: refuse or wait',
    shows: 'The same bucket. Calls that wait up to 2 s are served after the spike.',
    link: 'traffic=spike&rate=60&factor=5&period=20&a=bucket&a.scope=all&a.rate=120&a.burst=20&a.wait=0&b=bucket&b.scope=all&b.rate=120&b.burst=20&b.wait=2000',
  },
  {
    title: 'Sliding or fixed window',
    shows:
      'A fixed window starts anew at its boundary, here amid each spike: twice its limit passes within 4 s.',
    link: 'traffic=spike&rate=10&factor=20&period=20&a=window&a.scope=all&a.limit=300&a.per=10&b=quota&b.scope=all&b.limit=300&b.per=10&knee=20',
  },
  {
    title: 'After a deployment: a ramp or a bucket',
    shows: 'The ramp grows from 5 to 100 calls a second, so that caches can fill.',
    link: 'traffic=steady&rate=120&a=ramp&a.scope=all&a.min=5&a.max=100&a.over=40&b=bucket&b.scope=all&b.rate=100&b.burst=100',
  },
];
